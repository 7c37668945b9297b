/* Macros for the tests of the C interface. A failed check prints its position and ends the
 * program. */
#ifndef STET_TESTS_C_CHECK_H
#define STET_TESTS_C_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "stet/c.h"

static void fail_at(const char* file, int line, const char* what, const char* found) {
  fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, found);
  exit(1);
}

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) fail_at(__FILE__, __LINE__, "expected", #condition); \
  } while (0)

#define CHECK_TEXT(found, expected)                                               \
  do {                                                                            \
    if (strcmp(found, expected) != 0) fail_at(__FILE__, __LINE__, "text", found); \
  } while (0)

#define CHECK_FLOATS(a, b, count) CHECK(memcmp(a, b, (count) * sizeof(float)) == 0)

/* The error of the last call. */
static stet_error* error;

/* Expects the call to succeed. */
#define OK(call)                                                               \
  do {                                                                         \
    if ((call) != STET_OK)                                                     \
      fail_at(__FILE__, __LINE__, #call, error != NULL ? error->message : ""); \
    CHECK(error == NULL);                                                      \
  } while (0)

/* Expects the call to fail with this kind and this one-line error. */
#define FAILS(call, expected_kind, text)                                               \
  do {                                                                                 \
    if ((call) != (expected_kind))                                                     \
      fail_at(__FILE__, __LINE__, #call, error != NULL ? error->message : "no error"); \
    CHECK(error != NULL && error->kind == (expected_kind));                            \
    CHECK_TEXT(error->message, text);                                                  \
    stet_error_free(error);                                                            \
    error = NULL;                                                                      \
  } while (0)

/* Like FAILS, but compares only the end, for errors with a path or the system's reason. */
#define FAILS_WITH(call, expected_kind, end)                                           \
  do {                                                                                 \
    if ((call) != (expected_kind))                                                     \
      fail_at(__FILE__, __LINE__, #call, error != NULL ? error->message : "no error"); \
    CHECK(error != NULL && strlen(error->message) >= strlen(end));                     \
    CHECK_TEXT(error->message + strlen(error->message) - strlen(end), end);            \
    stet_error_free(error);                                                            \
    error = NULL;                                                                      \
  } while (0)

#define POCKET STET_ROOT "/assets/pocket-gemma3"
#define POCKET_LLAMA STET_ROOT "/assets/pocket-llama3"
#define TINY STET_ROOT "/tests/data/models/gemma3-tiny"
#define QWEN35 STET_ROOT "/tests/data/models/qwen35-tiny"
#define GRANITE STET_ROOT "/tests/data/models/granite-odd-tiny"
#define OTHER STET_ROOT "/tests/data/models/llama31-tiny"

#endif
