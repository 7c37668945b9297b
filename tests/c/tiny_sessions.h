/* Sessions of a small model over its tokens. The including test file sets both. */
#ifndef STET_TESTS_C_TINY_SESSIONS_H
#define STET_TESTS_C_TINY_SESSIONS_H

#include "check.h"

enum { kTokens = 100, kVocab = 320, kHidden = 64, kDim = 16, kLayers = 7 };

static stet_model* model;
static int32_t ids[kTokens];

static stet_session* session_of(size_t first, size_t count) {
  stet_session* session = NULL;
  OK(stet_session_new(model, NULL, &session, &error));
  OK(stet_session_append(session, ids + first, count, &error));
  return session;
}

static stet_session_info info_of(const stet_session* session) {
  stet_session_info info = {.struct_size = sizeof info};
  OK(stet_session_get_info(session, &info, &error));
  return info;
}

static void check_same_logits(stet_session* a, stet_session* b, int same) {
  const float *x = NULL, *y = NULL;
  size_t size = 0;
  OK(stet_session_logits(a, &x, &size, &error));
  OK(stet_session_logits(b, &y, &size, &error));
  CHECK((memcmp(x, y, size * sizeof *x) == 0) == same);
}

#endif
