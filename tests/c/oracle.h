/* Results of the C++ interface, with which the tests compare those of the C interface. */
#ifndef STET_TESTS_C_ORACLE_H
#define STET_TESTS_C_ORACLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the logits after each of the tokens, [count][vocab_size]. Ends the program unless they
 * fill `out`, which has `size` floats. */
void oracle_logits(const char* directory, const int32_t* ids, size_t count, float* out,
                   size_t size);
/* Writes array `index` of a recurrent layer after the tokens, as it is stored. Ends the program
 * unless it fills `out`, which has `size` floats. */
void oracle_recurrent(const char* directory, const int32_t* ids, size_t count, int64_t layer,
                      size_t index, float* out, size_t size);
/* Encodes a text with Tokenizer::encode. Returns the number of ids, at most `size`. */
size_t oracle_encode(const char* directory, const char* text, int32_t* out, size_t size);
/* Writes the text of a reply to raw text with these settings, ended by NUL. */
void oracle_reply(const char* directory, const char* prompt, double temperature, uint64_t seed,
                  int64_t max_tokens, char* out, size_t size);
/* Writes the id of the state after a conversation of these messages and the replies to them. */
void oracle_chat_id(const char* directory, const char* const* messages, size_t count, char* out,
                    size_t size);

/* Saves a conversation whose last reply was cut, and prints the reply's continuation. */
void oracle_save_cut_reply(const char* directory, const char* path);

/* Lets the C++ allocation after `after` more fail; -1: none fails. Returns 0 if that is not
 * possible. */
int32_t refuse_memory(int64_t after);

/* Callbacks that throw, as those of a C++ program may. */
int32_t throwing_text(void* context, const char* text, size_t size);
int32_t throwing_progress(void* context, int64_t done);
void throwing_release(void* context);

#ifdef __cplusplus
}
#endif

#endif
