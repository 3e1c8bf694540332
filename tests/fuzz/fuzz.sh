#!/usr/bin/env bash
# fuzz.sh SECONDS [TARGET...]: builds tests/fuzz as libFuzzers in build-fuzz/ and
# runs each for that time, starting from its corpus. New inputs stay in build-fuzz/found, failing
# ones in build-fuzz/failed: commit a fix together with the input as a file in
# tests/fuzz/corpus/TARGET.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:?usage: tests/fuzz/fuzz.sh SECONDS [TARGET...]}
shift
build=build-fuzz
generate=(cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DAGMM_BUILD_TESTS=ON
  -DAGMM_FUZZ=ON -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16)
if command -v ccache >/dev/null; then generate+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
"${generate[@]}" >/dev/null
targets=("$@")
if ((${#targets[@]} == 0)); then
  for folder in tests/fuzz/corpus/*; do targets+=("$(basename "$folder")"); done
fi
cmake --build $build --target fuzzer

failed=()
for target in "${targets[@]}"; do
  mkdir -p $build/found/"$target" $build/failed/"$target"
  log=$build/failed/$target.log
  # The verifier and the parsers are fast: an input that takes seconds is a finding, too.
  if AGMM_FUZZ_TARGET=$target $build/bin/fuzzer -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix=$build/failed/"$target"/ $build/found/"$target" \
    tests/fuzz/corpus/"$target" >"$log" 2>&1; then
    echo "$target: $(grep -E '^#[0-9]+\s+DONE' "$log" | tail -n 1)"
  else
    failed+=("$target")
    tail -n 40 "$log" >&2
  fi
done
if ((${#failed[@]} > 0)); then
  echo "fuzz.sh: these failed: ${failed[*]}; the inputs are in $build/failed" >&2
  exit 1
fi
