// What LeakSanitizer finds in libraries and not in stet; it is asked for by its runtime, and unused
// without one.

extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  // libomp allocates the dispatch buffers of a team anew when a team of the same thread is larger
  // than any before, and forgets the old ones: once for each size.
  return "leak:libomp.so\n";
}
