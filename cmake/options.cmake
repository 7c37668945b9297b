# Compiler options of all code of stet. The numeric contract requires an FMA exactly where one is
# written, whatever flags a surrounding project sets. No instruction-set flag is global:
# kernels/CMakeLists.txt gives each kernel file its own.
add_library(stet_options INTERFACE)
target_compile_options(stet_options INTERFACE
  -fno-fast-math -ffp-contract=off -fno-math-errno -fno-trapping-math)
# Large functions of the headers are compiled once, in src/session/separate.cpp.
target_compile_definitions(stet_options INTERFACE STET_SEPARATE)
if(STET_WARNINGS OR STET_WERROR)
  target_compile_options(stet_options INTERFACE
    -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion $<$<BOOL:${STET_WERROR}>:-Werror>)
else()
  target_compile_options(stet_options INTERFACE -w)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False warning: GCC bug 105651, "literal" + std::string.
  target_compile_options(stet_options INTERFACE -Wno-restrict)
endif()
# Optimization of all code but the kernels, in place of CMake's -O3. Flags with -O0 stay as they are.
if(CMAKE_CXX_FLAGS_RELEASE MATCHES "-O0")
  set(STET_OG "")
  set(STET_O2 "")
  set(STET_LIBRARY_OPTIMIZATION "")
  set(STET_TOKEN_OPTIMIZATION "")
else()
  set(STET_OG $<$<CONFIG:Release>:-Og>)
  set(STET_O2 $<$<CONFIG:Release>:-O2>)
  # The heavy computation is in the kernels, so -Og suffices for most of the library; -O1 takes a third
  # longer to compile. Prompts are 2 % faster if the passes have -O1, and reading a tokenizer of 30 MB
  # takes two thirds of the time. Most of the gain of -O2 comes from inlining small functions, which
  # these flags add.
  set(inlining $<$<CONFIG:Release>:-fstrict-aliasing>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    foreach(flag -finline-small-functions -findirect-inlining -fpartial-inlining -foptimize-sibling-calls)
      list(APPEND inlining $<$<CONFIG:Release>:${flag}>)
    endforeach()
  endif()
  set(STET_LIBRARY_OPTIMIZATION ${STET_OG} ${inlining})
  set(STET_TOKEN_OPTIMIZATION $<$<CONFIG:Release>:-O1> ${inlining})
endif()
# Static programs drop unreferenced code, and symbols where size matters. Where compiler and libc
# support it, they are position-independent. An exception then uses an index, instead of sorting the
# whole program's tables at the first throw.
if(STET_STATIC)
  include(CheckCXXCompilerFlag)
  include(CheckCXXSourceCompiles)
  include(CheckCXXSourceRuns)
  set(CMAKE_REQUIRED_LINK_OPTIONS -static-pie)
  check_cxx_source_compiles("#ifndef __PIE__\n#error\n#endif\nint main() {}" STET_STATIC_PIE)
  if(STET_STATIC_PIE AND NOT CMAKE_CROSSCOMPILING)  # libc relocates itself, which glibc supports since 2.36
    list(APPEND CMAKE_REQUIRED_LINK_OPTIONS -Wl,-z,pack-relative-relocs)
    check_cxx_source_runs("const char* volatile texts[] = {\"a\", \"b\"};\nint main() { return texts[1][0] != 'b'; }"
      STET_PACKED_RELOCATIONS)
  endif()
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  target_compile_options(stet_options INTERFACE -ffunction-sections -fdata-sections $<$<BOOL:${STET_STATIC_PIE}>:-fPIE>)
  # The smallest build uses whole-program optimization, except for the kernels, whose bits depend on
  # their own flags.
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION_MINSIZEREL ON)
  check_cxx_compiler_flag(-Oz STET_HAVE_OZ)
  if(STET_HAVE_OZ)
    string(REPLACE -Os -Oz CMAKE_CXX_FLAGS_MINSIZEREL "${CMAKE_CXX_FLAGS_MINSIZEREL}")
  endif()
  set(STET_LINK_OPTIONS $<IF:$<BOOL:${STET_STATIC_PIE}>,-static-pie,-static> -Wl,--gc-sections
    $<$<BOOL:${STET_PACKED_RELOCATIONS}>:-Wl,-z,pack-relative-relocs>
    $<$<CONFIG:MinSizeRel>:-s> $<$<CONFIG:MinSizeRel>:-Wl,-z,noseparate-code>
    $<$<AND:$<CONFIG:MinSizeRel>,$<CXX_COMPILER_ID:GNU>>:-flto-partition=one>)
endif()
if(STET_SANITIZE)
  target_compile_options(stet_options INTERFACE -fsanitize=${STET_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(stet_options INTERFACE -fsanitize=${STET_SANITIZE})
endif()

# Sets the options of the library's own files. One set of objects makes the static and the shared
# library. Symbols without STET_API are hidden.
function(stet_library_objects target)
  target_link_libraries(${target} PRIVATE stet_options $<BUILD_INTERFACE:stet_headers>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

#   stet_compile_together(TARGET NAME FOLDER...)
# Compiles the files of TARGET in these folders as one. Reading and instantiating the headers of the
# standard library and of JSON is most of the work of a file. STET_UNITY=OFF compiles each file
# alone, for work on one file at a time.
function(stet_compile_together target name)
  if(NOT STET_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage) # g++ takes an included file for a header
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
    cmake_path(GET path PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    if(folder IN_LIST ARGN)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${name})
    endif()
  endforeach()
endfunction()
