# Reports in one line what this machine lacks, before anything else can fail.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR " stet builds on Linux only, not on ${CMAKE_SYSTEM_NAME}: use a container or WSL.")
endif()
enable_language(CXX)
set(found "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "^(GNU|Clang)$"
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14))
  message(FATAL_ERROR " stet needs g++ >= 11 or clang >= 14, found ${found}: set CMAKE_CXX_COMPILER.")
endif()
message(STATUS "stet: ${found}; needs Linux, g++ >= 11 or clang >= 14, CMake >= ${CMAKE_MINIMUM_REQUIRED_VERSION}")
