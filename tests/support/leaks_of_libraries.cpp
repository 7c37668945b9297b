// Suppresses leaks that LeakSanitizer finds in other libraries. The sanitizer's runtime calls this
// function; without a sanitizer it is unused.

extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  // When a thread needs a larger team than before, libomp allocates new dispatch buffers and does
  // not free the old ones. That happens once for each size.
  return "leak:libomp.so\n";
}
