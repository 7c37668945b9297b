# Defines the test program of a room, which is a folder of tests. Compiling is most of a test's
# cost, so only files that compute for long are optimized, and the files of a room are compiled
# together. STET_UNITY=OFF compiles each file alone, for work on one file at a time.
set(STET_TEST_O0 $<$<NOT:$<CONFIG:Debug>>:-O0>)
set(STET_TEST_OG $<$<NOT:$<CONFIG:Debug>>:-Og>)
set(STET_TEST_IN_SCRATCH ${CMAKE_CURRENT_LIST_DIR}/in_scratch) # runs a command that writes files
# gold links these programs in a third of the time that ld takes.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=gold STET_HAVE_GOLD)
set(STET_TEST_LINKER $<$<BOOL:${STET_HAVE_GOLD}>:-fuse-ld=gold>)
set(STET_TEST_BATCH 12 CACHE STRING "files of a room of tests that are compiled as one")

# Gives the tests of tests/slow.txt that add_test() defines in this folder the label "slow", as
# discover.cmake does for the cases of programs. A room calls it after its last test.
function(stet_label_slow)
  file(STRINGS ${PROJECT_SOURCE_DIR}/tests/slow.txt slow)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test ${tests})
    get_property(labels TEST ${test} PROPERTY LABELS)
    if(test IN_LIST slow AND NOT slow IN_LIST labels)
      set_property(TEST ${test} APPEND PROPERTY LABELS slow)
      set_property(TEST ${test} PROPERTY COST 1000)
    endif()
  endforeach()
endfunction()

#   stet_test_program(NAME ROOM SOURCES FILE... [COMPUTES FILE...] [THOROUGH REGEX] [TOGETHER REGEX]
#                     [LINKS LIBRARY...] [NEEDS TARGET...] [PROPERTIES NAME VALUE...])
# Adds a program, and a ctest test ROOM/Suite.Case for each of its cases. All parameters of a case
# are one test.
#     COMPUTES    files that compute expected values or damage many bytes; compiled with -Og
#     THOROUGH    cases with the label "thorough", which only tools/check --full runs
#     TOGETHER    suites that are one test each, ROOM/Suite, because their cases share expensive set-up
#     NEEDS       targets that are built first: programs that the tests run
#     PROPERTIES  ctest properties of all tests
function(stet_test_program name room)
  cmake_parse_arguments(PARSE_ARGV 2 own "" "THOROUGH;TOGETHER" "SOURCES;COMPUTES;LINKS;NEEDS;PROPERTIES")
  set(parts)
  foreach(part SOURCES COMPUTES)
    if(own_${part})
      set(target ${name}_${part})
      string(TOLOWER ${target} target)
      add_library(${target} OBJECT ${own_${part}})
      target_link_libraries(${target} PRIVATE test_support ${own_LINKS})
      target_compile_options(${target} PRIVATE $<IF:$<STREQUAL:${part},COMPUTES>,${STET_TEST_OG},${STET_TEST_O0}>)
      if(STET_UNITY)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${STET_TEST_BATCH})
        if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
          target_compile_options(${target} PRIVATE -Wno-subobject-linkage) # g++ takes an included file for a header
        endif()
      endif()
      list(APPEND parts $<TARGET_OBJECTS:${target}>)
    endif()
  endforeach()
  # The library's objects come first, so that its optimized copies of the headers' functions are used.
  add_executable(${name} ${stet_objects} ${parts} $<TARGET_OBJECTS:test_main>)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE test_support ${own_LINKS})
  target_link_options(${name} PRIVATE ${STET_TEST_LINKER})
  if(own_NEEDS)
    add_dependencies(${name} ${own_NEEDS})
  endif()
  # ctest includes this file when it starts, and asks the program for its cases.
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}.ctest.cmake)
  file(GENERATE OUTPUT ${file} CONTENT
"set(program [==[$<TARGET_FILE:${name}>]==])
set(room [==[${room}]==])
set(thorough [==[${own_THOROUGH}]==])
set(together [==[${own_TOGETHER}]==])
set(properties [==[${own_PROPERTIES}]==])
include([==[${PROJECT_SOURCE_DIR}/tests/support/discover.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

#   stet_test_room(ROOM [APART FILE...] [COMPUTES FILE...] [options of stet_test_program])
# Adds the program ROOM_tests from all sources of the folder except APART. Pass the files of APART
# to stet_test_program.
function(stet_test_room room)
  cmake_parse_arguments(PARSE_ARGV 1 own "" "THOROUGH;TOGETHER" "APART;COMPUTES;SOURCES;LINKS;NEEDS;PROPERTIES")
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cpp)
  list(REMOVE_ITEM sources ${own_APART} ${own_COMPUTES} "")
  set(options)
  foreach(option THOROUGH TOGETHER LINKS NEEDS PROPERTIES)
    if(own_${option})
      list(APPEND options ${option} ${own_${option}})
    endif()
  endforeach()
  stet_test_program(${room}_tests ${room} SOURCES ${sources} ${own_SOURCES} COMPUTES ${own_COMPUTES} ${options})
endfunction()
