/* The tests of the C interface, which main.c runs by name. Each returns 0, or ends the program. */
#ifndef STET_TESTS_C_CASES_H
#define STET_TESTS_C_CASES_H

int test_border(void);
int test_chat(void);
int test_generate(void);
int test_interventions(void);
int test_lab(void);
int test_recurrent(void);
int test_score(void);
int test_session(void);
int test_snapshot(void);
int test_text(void);

#endif
