#!/usr/bin/env bash
# run.sh [--long] [CTEST ARGUMENTS]: installs what is missing, builds, runs the tests with
# failpoints, then a choice of them under the sanitizers; CTest's summary follows each of the three.
# Fails when any has failed, after all have run. With arguments for CTest (-R fault) only the first.
# --long: every test everywhere, those labelled long too, and each fuzzer for a minute.
set -euo pipefail
cd "$(dirname "$0")/.."

long=
if [[ ${1:-} == --long ]]; then
  long=1
  shift
fi

# What has threads that share something, the library and daemons of several processes among it.
thread_tests=(base conformance_device conformance_failure daemon_transport daemon_transport_bulk
  daemon_transport_drive daemon_transport_peer daemon_catalog daemon_scheduler daemon_runner daemon_upload
  daemon_read_tensor daemon_map_tensor daemon_remote_control daemon_session daemon_job_service daemon_world
  client_channel client_connection client_agmm_job client_agmm_tensor client_agmm_mapping e2e_tensor e2e_mapping
  e2e_mapping_process e2e_restart e2e_soak fault)
# What takes bytes from outside, and what owns memory; the soak, kills and restarts of daemons.
address_tests=(base conformance_device conformance_failure daemon_transport daemon_transport_bulk
  daemon_transport_drive daemon_catalog daemon_scheduler daemon_upload daemon_read_tensor daemon_map_tensor
  daemon_session daemon_job_service daemon_world client_npy client_ctl client_agmm_job client_agmm_tensor
  client_agmm_mapping e2e_tensor e2e_mapping_process e2e_restart e2e_soak fault fuzz_schedule_text fuzz_config
  fuzz_npy)

# configure FOLDER [CMAKE ARGUMENTS]
configure() {
  local build=$1
  shift
  local generate=(cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAGMM_BUILD_TESTS=ON
    -DAGMM_FAILPOINTS=ON "$@")
  if command -v ccache >/dev/null; then generate+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p "$build"
  if ! "${generate[@]}" >"$build/configure.log" 2>&1; then
    cat "$build/configure.log" >&2
    echo "run.sh: configuring failed; what is above is in $build/configure.log, too" >&2
    exit 1
  fi
}

# check FOLDER [CTEST ARGUMENTS]. Debian's CTest knows --test-dir; its closing lines say how many
# passed and which did not.
failed=()
check() {
  local build=$1 run=()
  shift
  # gcc's thread sanitizer does not know the addresses that kernels with 32 random bits give.
  if [[ $build == build-thread ]] && setarch -R true 2>/dev/null; then run=(setarch -R); fi
  "${run[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel 2 "$@" ||
    failed+=("$build")
  echo "run.sh: $build is done after $((SECONDS / 60)) minutes"
}

# sanitize NAME FLAGS TESTS...: builds and runs these tests, with --long all.
sanitize() {
  local build=build-$1 flags=$2
  shift 2
  configure "$build" -DAGMM_SANITIZE="$flags"
  if [[ $long ]]; then
    cmake --build "$build"
    check "$build"
    return
  fi
  local target targets=()
  for target in "$@"; do
    case $target in
      fuzz_*) targets+=("${target#fuzz_}_fuzz") ;;
      *) targets+=("${target}_test") ;;
    esac
  done
  cmake --build "$build" --target "${targets[@]}"
  check "$build" -R "^($(IFS='|' && echo "$*"))\$"
}

deploy/install-deps.sh ${long:+--long}
configure build-test
cmake --build build-test
if (($# > 0)); then
  exec ctest --test-dir build-test --output-on-failure --parallel 2 "$@"
fi
if [[ $long ]]; then check build-test; else check build-test -LE long; fi
sanitize thread thread "${thread_tests[@]}"
sanitize address address,undefined "${address_tests[@]}"
if [[ $long ]]; then tests/fuzz/fuzz.sh 60 || failed+=(build-fuzz); fi
if ((${#failed[@]} > 0)); then
  echo "run.sh: tests failed in ${failed[*]}; see the summaries above" >&2
  exit 1
fi
