#!/usr/bin/env bash
# run.sh [--long] [CTEST ARGUMENTS]: installs missing packages, builds, runs the tests with
# failpoints, and then the tests labelled thread and address under these sanitizers. CTest's summary
# and the slowest ten tests follow each of the three. Fails if any test has failed, after all have
# run. With arguments for CTest (-R fault) it runs the first of the three alone. --long: all tests
# under the sanitizers, too, and each fuzzer for a minute.
set -euo pipefail
cd "$(dirname "$0")/.."

long=
if [[ ${1:-} == --long ]]; then
  long=1
  shift
fi

# Without these ccache keeps nothing that was compiled with precompiled headers.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime

# configure FOLDER [CMAKE ARGUMENTS]
configure() {
  local build=$1
  shift
  # Headers take most of a file's time, so up to twenty files are compiled as one. The normal build
  # of developers and users shows which includes a file is missing.
  local generate=(cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAGMM_BUILD_TESTS=ON
    -DAGMM_FAILPOINTS=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=20 "$@")
  if command -v ccache >/dev/null; then generate+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p "$build"
  if ! "${generate[@]}" >"$build/configure.log" 2>&1; then
    cat "$build/configure.log" >&2
    echo "run.sh: configuring failed; what is above is in $build/configure.log, too" >&2
    exit 1
  fi
}

# check FOLDER [CTEST ARGUMENTS]. Most tests wait more than they compute, so three run at once.
# Debian's CTest knows --test-dir; its closing lines say how many passed and which did not. Passing
# tests are left out here, so that failures are found at once; FOLDER/junit.xml has the time of each
# test.
failed=()
check() {
  local build=$1 run=()
  shift
  # gcc's thread sanitizer does not know the addresses that kernels with 32 random bits give.
  if [[ $build == build-thread ]] && setarch -R true 2>/dev/null; then run=(setarch -R); fi
  echo "run.sh: $build is built after $((SECONDS / 60)) minutes; its tests run"
  "${run[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel 3 \
    --output-junit "$PWD/$build/junit.xml" "$@" |
    grep -vE '^ +Start +[0-9]+: | +Passed +[0-9.]+ sec *$' || failed+=("$build")
  echo "run.sh: $build is done after $((SECONDS / 60)) minutes; its slowest tests, in seconds:"
  sed -nE 's/.*<testcase name="([^"]+)".* time="([^"]+)".*/\2 \1/p' "$build/junit.xml" |
    sort -rn | sed -n 1,10p || true
}

# sanitize LABEL FLAGS: builds and runs the tests of this label, with --long all.
sanitize() {
  local build=build-$1
  configure "$build" -DAGMM_SANITIZE="$2"
  if [[ $long ]]; then
    cmake --build "$build"
    check "$build"
  else
    cmake --build "$build" --target "$1_tests"
    check "$build" -L "^$1\$"
  fi
}

deploy/install-deps.sh ${long:+--long}
configure build-test
cmake --build build-test
if (($# > 0)); then
  exec ctest --test-dir build-test --output-on-failure --no-tests=error --parallel 2 "$@"
fi
check build-test
sanitize thread thread
sanitize address address,undefined
if [[ $long ]]; then tests/fuzz/fuzz.sh 60 || failed+=(build-fuzz); fi
if ((${#failed[@]} > 0)); then
  echo "run.sh: tests failed in ${failed[*]}; see the summaries above" >&2
  exit 1
fi
