/* What the C++ interface gives, for the tests of the C one. */
#ifndef STET_TESTS_C_ORACLE_H
#define STET_TESTS_C_ORACLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Logits that follow each of the tokens, [count][vocab_size]; ends the program where they do not
 * fill `out` of `size` floats. */
void oracle_logits(const char* directory, const int32_t* ids, size_t count, float* out,
                   size_t size);
/* Token ids of a text as Tokenizer::encode gives them; returns how many, at most `size`. */
size_t oracle_encode(const char* directory, const char* text, int32_t* out, size_t size);
/* The text of a reply to raw text, by these settings; ends with NUL. */
void oracle_reply(const char* directory, const char* prompt, double temperature, uint64_t seed,
                  int64_t max_tokens, char* out, size_t size);
/* The state's id after a conversation of these messages and the replies to them. */
void oracle_chat_id(const char* directory, const char* const* messages, size_t count, char* out,
                    size_t size);

/* Saves a conversation whose last reply was cut, and prints how that goes on. */
void oracle_save_cut_reply(const char* directory, const char* path);

/* The allocation in C++ after so many more fails; -1: none does. 0 where that cannot be had. */
int32_t refuse_memory(int64_t after);

/* Callbacks that throw, as those of a program in C++ may. */
int32_t throwing_text(void* context, const char* text, size_t size);
int32_t throwing_progress(void* context, int64_t done);
void throwing_release(void* context);

#ifdef __cplusplus
}
#endif

#endif
