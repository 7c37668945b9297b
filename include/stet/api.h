/* The version that a program is compiled against, and the mark of what the library exports. C99 and
 * C++. stet_version() is the version of the library that the program runs with. */
#ifndef STET_API_H
#define STET_API_H

#define STET_VERSION_MAJOR 0
#define STET_VERSION_MINOR 1
#define STET_VERSION_PATCH 0
#define STET_VERSION "0.1.0"

/* Stands before what the library compiles for programs. All else is hidden in it, or is inline code
 * of its headers. */
#ifndef STET_API
#if defined(__GNUC__)
#define STET_API __attribute__((visibility("default")))
#else
#define STET_API
#endif
#endif

#endif
