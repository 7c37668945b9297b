/* Runs the tests of the C interface: the named one, or all. They write to the working directory.
 *   c_tests [NAME] */
#include <stddef.h>
#include <string.h>

#include "cases.h"
#include "oracle.h"

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int (*run)(void);
  } tests[] = {
      {"border", test_border},     {"chat", test_chat},
      {"generate", test_generate}, {"interventions", test_interventions},
      {"lab", test_lab},           {"recurrent", test_recurrent},
      {"score", test_score},       {"session", test_session},
      {"snapshot", test_snapshot}, {"text", test_text},
  };
  if (argc == 4 && strcmp(argv[1], "save_cut_reply") == 0) {
    oracle_save_cut_reply(argv[2], argv[3]);
    return 0;
  }
  int ran = 0;
  for (size_t i = 0; i < sizeof tests / sizeof *tests; ++i) {
    if (argc > 1 && strcmp(argv[1], tests[i].name) != 0) continue;
    ++ran;
    if (tests[i].run() != 0) return 1;
  }
  return ran > 0 ? 0 : 2;
}
