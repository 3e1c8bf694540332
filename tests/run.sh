#!/usr/bin/env bash
# run.sh [--long] [CTEST ARGUMENTS]: installs missing packages, builds, runs the tests with
# failpoints, and then the tests labelled thread and address under these sanitizers. CTest's summary
# and the slowest ten tests follow each of the three. Fails if any test has failed, after all have
# run. With arguments for CTest (-R fault) it runs the first of the three alone. --long: all tests
# under the sanitizers, too, and each fuzzer for a minute. NOTES.md shows where the time goes.
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

# check FOLDER AT_ONCE [LABEL]: runs the tests of this label, with --long all tests. Many tests wait,
# so several run at once. Debian's CTest knows --test-dir; its closing lines say how many passed and
# which did not. Passing tests are left out here, so that failures are found at once;
# FOLDER/junit.xml has the time of each test.
failed=()
check() {
  local build=$1 at_once=$2 run=() labelled=()
  if [[ ${3:-} && ! $long ]]; then labelled=(-L "^$3\$"); fi
  # gcc's thread sanitizer does not know the addresses that kernels with 32 random bits give.
  if [[ $build == build-thread ]] && setarch -R true 2>/dev/null; then run=(setarch -R); fi
  echo "run.sh: $build is built after $((SECONDS / 60)) minutes; its tests run"
  "${run[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$at_once" \
    --output-junit "$PWD/$build/junit.xml" "${labelled[@]}" |
    grep -vE '^ +Start +[0-9]+: | +Passed +[0-9.]+ sec *$' || failed+=("$build")
  echo "run.sh: $build is done after $((SECONDS / 60)) minutes; its slowest tests, in seconds:"
  sed -nE 's/.*<testcase name="([^"]+)".* time="([^"]+)".*/\2 \1/p' "$build/junit.xml" |
    sort -rn | sed -n 1,10p || true
}

# start_build LABEL FLAGS [CMAKE ARGUMENTS]: starts to build the tests of this label with a
# sanitizer, with --long all tests, after the build that was started before. Tests run meanwhile. They
# often wait; the low priority of the build leaves them the processors at all other times.
declare -A building=()
last_build=
start_build() {
  local target=$1_tests model=(-DAGMM_BUILT_MODEL="$PWD/build-test/lib/model")
  if [[ $long ]]; then target=all model=(-DAGMM_BUILT_MODEL=); fi
  configure "build-$1" -DAGMM_SANITIZE="$2" "${model[@]}" "${@:3}"
  {
    if [[ $last_build ]]; then tail --pid="$last_build" -f /dev/null; fi
    exec nice -n 19 ninja -C "build-$1" "$target"
  } >"build-$1/build.log" 2>&1 &
  last_build=$!
  building[$1]=$!
}

# finish_build LABEL: waits for the end of this build.
finish_build() {
  local built=1
  wait "${building[$1]}" || built=
  unset "building[$1]"
  if [[ ! $built ]]; then
    tail -n 50 "build-$1/build.log" >&2
    echo "run.sh: building failed; all of its output is in build-$1/build.log" >&2
    exit 1
  fi
}

deploy/install-deps.sh
configure build-test
cmake --build build-test
if (($# > 0)); then
  exec ctest --test-dir build-test --output-on-failure --no-tests=error --parallel 2 "$@"
fi
trap 'kill "${building[@]}" 2>/dev/null || true' EXIT
start_build thread thread
# clang compiles this in half of gcc's time, and warns and checks in other ways.
start_build address address,undefined -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16
check build-test 3
finish_build thread
check build-thread 3 thread
finish_build address
check build-address 4 address  # no build runs beside them
if [[ $long ]]; then tests/fuzz/fuzz.sh 60 || failed+=(build-fuzz); fi
# Kernels of other projects, and mutants of kernels, where CUDA devices are built.
if [[ $long && -x build-test/bin/sm90_run ]]; then
  tests/model/ptx/known_good/all.sh build-known-good build-test || failed+=(build-known-good)
fi
# More plans of each sharding, and 1,000 epochs with delays and new operands, whose products kernels compute.
if [[ $long && -x build-test/bin/cuda_fault_test ]]; then
  UCX_MEM_EVENTS=n UCX_MEM_MMAP_HOOK_MODE=none AGMM_KERNEL_EPOCHS=1000 AGMM_KERNEL_PLANS=24 \
    AGMM_MODEL=gpus=8,memory=8GiB,channels=32,order=random build-test/bin/conformance_test \
    --gtest_filter='*Kernels.Use*:*KernelShardings*' || failed+=(build-test)
fi
# Mutants of the host half of CUDA devices.
if [[ $long && -x build-test/bin/cuda_fault_test ]]; then
  python3 tests/cuda/mutants.py --build build-mutants || failed+=(build-mutants)
fi
if ((${#failed[@]} > 0)); then
  echo "run.sh: tests failed in ${failed[*]}; see the summaries above" >&2
  exit 1
fi
