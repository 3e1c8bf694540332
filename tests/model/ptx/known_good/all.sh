#!/usr/bin/env bash
# all.sh FOLDER BUILD: runs kernels of CUTLASS and JAX on the PTX model, mutants of these, of Triton's and of agmm's, and a comparison.
#
# BUILD is a build folder of agmm with tests. FOLDER keeps what is compiled and installed (CUTLASS, JAX: about 1 GB from PyPI).
# Takes about an hour, most of it mutants, and 3 GB of memory.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd) build=$(cd "$2" && pwd)
cd "$(dirname "$0")"
python3 cutlass.py --build "$folder" --seeds 20
python3 jax_kernels.py --build "$folder" --seeds 20
python3 compare.py --build "$folder" --agmm "$build" --rows 256 --cols 1024 --depth 512
python3 mutants.py --build "$folder" --agmm "$build"
