# cmake -DSOURCE=... -DVERSION=0.1.0 -DOUT=version.cc -P version.cmake
#
# Writes OUT, which defines Version() of version.h. It runs with every build and writes the file only where its contents
# change, so that a commit compiles one file.
set(commit "")
# Requires that SOURCE itself is a checkout: sources unpacked within some other repository have no
# commit.
if(EXISTS ${SOURCE}/.git)
  file(REAL_PATH ${SOURCE} source)
  # The folder may belong to another user. Without locks, because the developer's git may run at the same time.
  set(git git --no-optional-locks -c safe.directory=${source} -C ${source})
  execute_process(COMMAND ${git} rev-parse --verify --short=12 HEAD OUTPUT_VARIABLE commit
    OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  execute_process(COMMAND ${git} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
  if(NOT failed EQUAL 0)
    set(commit "")
  elseif(NOT changes STREQUAL "")
    string(APPEND commit ", changed")
  endif()
endif()
set(text ${VERSION})
if(NOT commit STREQUAL "")
  string(APPEND text " (${commit})")
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
#include "kernels/base/version.h"

namespace agmm {

const char* Version() { return "@text@"; }

}  // namespace agmm
]])
