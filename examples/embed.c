/* Resumes a snapshot and continues its reply. Arguments: a checkpoint directory, a snapshot. */
#include <stdio.h>

#include "stet/c.h"

static int32_t print(void* context, const char* text, size_t size) {
  (void)context;
  return fwrite(text, 1, size, stdout) == size ? 0 : 1; /* not 0: the reply ends here */
}

int main(int argc, char** argv) {
  stet_error* error = NULL;
  stet_model* model = NULL;
  stet_tokenizer* tokenizer = NULL;
  stet_snapshot* snapshot = NULL;
  stet_session* session = NULL;
  stet_reply* reply = NULL;
  const stet_generate_options options = {
      .struct_size = sizeof options, .max_tokens = 64, .on_text = print};
  if (argc != 3 || stet_abi_version() != STET_ABI_VERSION) return 2;

  if (stet_model_load(argv[1], NULL, &model, &error) == STET_OK &&
      stet_tokenizer_load(argv[1], &tokenizer, &error) == STET_OK &&
      stet_snapshot_open(argv[2], NULL, &snapshot, &error) == STET_OK &&
      stet_snapshot_restore(snapshot, model, tokenizer, NULL, NULL, NULL, &session, &error) ==
          STET_OK)
    stet_session_generate(session, tokenizer, &options, &reply, &error);
  const int failed = error != NULL;
  if (failed) fprintf(stderr, "%s\n", error->message);

  stet_reply_free(reply);
  stet_session_free(session);
  stet_snapshot_free(snapshot);
  stet_tokenizer_free(tokenizer);
  stet_model_free(model);
  stet_error_free(error);
  return failed;
}
