# Builds the library: compiled once, linked as an archive (stet) and as a shared object
# (stet_shared). Programs link stet::static, stet::shared, or stet::stet, which follows
# BUILD_SHARED_LIBS.
file(GLOB sources CONFIGURE_DEPENDS src/*/*.cpp models/*.cpp)
add_library(stet_runtime OBJECT ${sources})
stet_library_objects(stet_runtime)
stet_compile_together(stet_runtime checkpoint src/base src/blas src/files src/threads src/checkpoint src/gguf models)
stet_compile_together(stet_runtime states src/session src/snapshot src/store src/generate src/c)
stet_compile_together(stet_runtime text src/text)
target_link_libraries(stet_runtime PRIVATE ${STET_LIBRARIES})
target_compile_definitions(stet_runtime PRIVATE ${STET_DEFINITIONS})
# The heavy computation is in the kernels, so -O1 suffices here. -O2 takes a third longer to
# compile, and most of its gain comes from inlining small functions, which these flags add.
target_compile_options(stet_runtime PRIVATE ${STET_O1} $<$<CONFIG:Release>:-fstrict-aliasing>
  $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-finline-small-functions>
  $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-findirect-inlining>
  $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-fpartial-inlining>
  $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-foptimize-sibling-calls>)
if(have_openmp)
  set_source_files_properties(src/threads/openmp.cpp PROPERTIES COMPILE_OPTIONS -fopenmp) # contains all OpenMP code
endif()

find_package(Threads REQUIRED)
set(objects $<TARGET_OBJECTS:stet_runtime> $<TARGET_OBJECTS:stet_kernels> $<TARGET_OBJECTS:stet_jinja>)
add_library(stet STATIC ${objects})
set(libraries stet)
if(NOT STET_STATIC AND NOT STET_SANITIZE)
  add_library(stet_shared SHARED ${objects})
  list(APPEND libraries stet_shared)
  set_target_properties(stet_shared PROPERTIES
    OUTPUT_NAME stet EXPORT_NAME shared VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  set(map ${PROJECT_SOURCE_DIR}/cmake/libstet.map)
  target_link_options(stet_shared PRIVATE -Wl,-z,defs -Wl,--version-script=${map})
  set_target_properties(stet_shared PROPERTIES LINK_DEPENDS ${map})
  add_library(stet::shared ALIAS stet_shared)
endif()
set_target_properties(stet PROPERTIES EXPORT_NAME static)
add_library(stet::static ALIAS stet)
foreach(target ${libraries})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE Threads::Threads ${STET_LIBRARIES})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  if(STET_SANITIZE)
    target_link_options(${target} INTERFACE -fsanitize=${STET_SANITIZE})
  endif()
  if(NOT PROJECT_IS_TOP_LEVEL)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON) # a project links one of the two
  endif()
endforeach()
if(BUILD_SHARED_LIBS AND TARGET stet_shared)
  add_library(stet::stet ALIAS stet_shared)
else()
  add_library(stet::stet ALIAS stet)
endif()
