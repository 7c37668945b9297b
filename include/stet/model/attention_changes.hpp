// Attention under interventions on scores and patterns. Each affected query is recomputed alone,
// with the kernels and in the order of the pass. Its bits therefore depend only on the state, and
// an intervention that leaves all scores as they are changes no bit.
#pragma once

#include "stet/api.h"
#include "stet/model/attention.hpp"

namespace stet {

// Recomputes the affected queries after attention(). The pass must have hooks. Allocates memory if
// an intervention applies.
void change_attention(Team t, const Pass& p, const AttentionShape& a, Rows q, Rows y);

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/model/attention_changes-inl.hpp"
#endif
