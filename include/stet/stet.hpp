// All of stet's C++ interface.
#pragma once

#include "stet/chat/conversation.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/generate/batch.hpp"
#include "stet/generate/generate.hpp"
#include "stet/generate/score.hpp"
#include "stet/model/decoder.hpp"
#include "stet/model/model.hpp"
#include "stet/model/named_weights.hpp"
#include "stet/session/session.hpp"
#include "stet/session/splice.hpp"
#include "stet/session/trace.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "stet/text/tokenizer.hpp"
#include "stet/threads/interrupt.hpp"
