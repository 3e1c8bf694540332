#!/usr/bin/env bash
# tests/bench/run.sh [--quick] [--suite] [--help]: compares agmm with its
# alternatives, on two to four hosts made of network namespaces. Needs root. Installs missing
# packages, builds into build-bench/, and measures. NOTES.md describes the measurements, and how to
# add torch.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ " $* " != *" --help "* && " $* " != *" -h "* ]]; then
  if ((EUID != 0)); then
    echo "tests/bench/run.sh: making network namespaces needs root; run it as root" >&2
    exit 1
  fi
  deploy/install-deps.sh --bench
  build=build-bench
  configure=(cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAGMM_BUILD_TESTS=ON -DAGMM_BENCH=ON)
  if command -v ccache >/dev/null; then configure+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p "$build"
  { "${configure[@]}" && cmake --build "$build" --target agmmd agmmctl agmm_jobs mpi_rank mpi_collectives mpi_sums ucx_rank; } >"$build/build.log" 2>&1 || {
    tail -n 40 "$build/build.log" >&2
    echo "tests/bench/run.sh: the build failed; all of it is in $build/build.log" >&2
    exit 1
  }
fi
# The python that has the numpy package.
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 tests/bench/bench.py "$@"
