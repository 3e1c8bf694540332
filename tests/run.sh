#!/usr/bin/env bash
# Installs what is missing, builds into build-test/ with failpoints, runs every test. Ends with
# CTest's summary.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install-deps.sh
generate=(cmake -S . -B build-test -G Ninja -DCMAKE_BUILD_TYPE=Release -DAGMM_BUILD_TESTS=ON
  -DAGMM_FAILPOINTS=ON)
if command -v ccache >/dev/null; then generate+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
log=build-test/configure.log
mkdir -p build-test
if ! "${generate[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  echo "run.sh: configuring failed; what is above is in $log, too" >&2
  exit 1
fi
cmake --build build-test
# Debian's CTest knows --test-dir; its closing lines say how many passed and which did not.
exec ctest --test-dir build-test --output-on-failure --parallel 2 "$@"
