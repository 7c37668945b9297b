/* The version of this header, and the export attribute. For C99 and C++. stet_version() returns the
 * version of the library that the program runs with. */
#ifndef STET_API_H
#define STET_API_H

#define STET_VERSION_MAJOR 0
#define STET_VERSION_MINOR 1
#define STET_VERSION_PATCH 0
#define STET_VERSION "0.1.0"

/* Marks exported functions and classes. Everything else is hidden in the library or inline. */
#ifndef STET_API
#if defined(__GNUC__)
#define STET_API __attribute__((visibility("default")))
#else
#define STET_API
#endif
#endif

/* Functions of the files "*-inl.hpp" are inline, so a program needs nothing but the headers for them.
 * With STET_SEPARATE defined, headers only declare them, and libstet.a has them: this compiles
 * faster. libstet.so does not export them. */
#ifdef STET_SEPARATE
#define STET_INL
#else
#define STET_INL inline
#endif

#endif
