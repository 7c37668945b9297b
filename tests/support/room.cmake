# Rooms of tests. Compiling is most of what a test costs, so nothing is optimised but what computes for long, and the files of a
# room are compiled together; STET_UNITY=OFF is for whoever changes one file at a time.
set(STET_TEST_O0 $<$<NOT:$<CONFIG:Debug>>:-O0>)
set(STET_TEST_O1 $<$<NOT:$<CONFIG:Debug>>:-O1>)
set(STET_TEST_IN_SCRATCH ${CMAKE_CURRENT_LIST_DIR}/in_scratch) # before a command that writes files
set(STET_TEST_BATCH 12 CACHE STRING "files of a room of tests that are compiled as one")

# stet_test_program(NAME ROOM SOURCES FILE... [COMPUTES FILE...] [SLOW REGEX] [THOROUGH REGEX] [TOGETHER REGEX] [LINKS LIBRARY...] [NEEDS TARGET...]
#                   [PROPERTIES NAME VALUE...])
# One program, and a test of ctest's for each of its cases, called ROOM/Suite.Case: all parameters of a case are one test.
#   COMPUTES    those that compute what they compare with, or the bytes that they damage: compiled with -O1
#   SLOW        cases that get the label "slow", which tools/check leaves out
#   THOROUGH    cases that get the label "thorough", which tools/check --full alone runs
#   TOGETHER    suites that are one test each, ROOM/Suite, because their cases share what is expensive
#   NEEDS       what is built before: programs that the tests run
#   PROPERTIES  of all its tests
function(stet_test_program name room)
  cmake_parse_arguments(PARSE_ARGV 2 own "" "SLOW;THOROUGH;TOGETHER" "SOURCES;COMPUTES;LINKS;NEEDS;PROPERTIES")
  set(parts)
  foreach(part SOURCES COMPUTES)
    if(own_${part})
      set(target ${name}_${part})
      string(TOLOWER ${target} target)
      add_library(${target} OBJECT ${own_${part}})
      target_link_libraries(${target} PRIVATE test_support ${own_LINKS})
      target_compile_options(${target} PRIVATE $<IF:$<STREQUAL:${part},COMPUTES>,${STET_TEST_O1},${STET_TEST_O0}>)
      if(STET_UNITY)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${STET_TEST_BATCH})
        if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
          target_compile_options(${target} PRIVATE -Wno-subobject-linkage) # takes an included file for a header
        endif()
      endif()
      list(APPEND parts $<TARGET_OBJECTS:${target}>)
    endif()
  endforeach()
  add_executable(${name} ${parts} $<TARGET_OBJECTS:test_main>)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE test_support ${own_LINKS})
  if(own_NEEDS)
    add_dependencies(${name} ${own_NEEDS})
  endif()
  # Read by ctest when it starts: what cases there are, the program says.
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}.ctest.cmake)
  file(GENERATE OUTPUT ${file} CONTENT
"set(program [==[$<TARGET_FILE:${name}>]==])
set(room [==[${room}]==])
set(slow [==[${own_SLOW}]==])
set(thorough [==[${own_THOROUGH}]==])
set(together [==[${own_TOGETHER}]==])
set(properties [==[${own_PROPERTIES}]==])
include([==[${PROJECT_SOURCE_DIR}/tests/support/discover.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

# stet_test_room(ROOM [APART FILE...] [COMPUTES FILE...] [other options of stet_test_program])
# The program ROOM_tests of all files of the folder but those APART, which stet_test_program then gets.
function(stet_test_room room)
  cmake_parse_arguments(PARSE_ARGV 1 own "" "SLOW;THOROUGH;TOGETHER" "APART;COMPUTES;SOURCES;LINKS;NEEDS;PROPERTIES")
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cpp)
  list(REMOVE_ITEM sources ${own_APART} ${own_COMPUTES} "")
  set(options)
  foreach(option SLOW THOROUGH TOGETHER LINKS NEEDS PROPERTIES)
    if(own_${option})
      list(APPEND options ${option} ${own_${option}})
    endif()
  endforeach()
  stet_test_program(${room}_tests ${room} SOURCES ${sources} ${own_SOURCES} COMPUTES ${own_COMPUTES} ${options})
endfunction()
