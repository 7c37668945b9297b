// Captures attention scores, patterns and each head's part of the output. The same kernels run in
// the same order of blocks, maxima and sums as in the pass itself, so the bits agree.
#pragma once

#include "stet/api.h"
#include "stet/model/attention.hpp"
#include "stet/model/config.hpp"
#include "stet/model/matrix.hpp"

namespace stet {

// Captures scores and patterns after attention(). The pass must have hooks. Allocates memory only
// if a capture was requested.
void capture_attention(Team t, const Pass& p, const AttentionShape& a, Rows q);
// Captures each head's contribution to the output, between attention() and the output matrix
// ([hidden][heads head_dim]). Overwrites p.qkv and p.out, which the pass no longer needs.
void result_point(Team t, const Pass& p, const ModelConfig& c, size_t index, const Matrix& output);

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/model/attention_capture-inl.hpp"
#endif
