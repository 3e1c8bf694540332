#!/usr/bin/env bash
# compile.sh FATBIN REPORT NVCC ARGUMENTS...: compiles kernels into a fat binary whose PTX is readable, and writes the report of
# ptxas (registers, spills, shared memory).
#
# ptxas repairs some mistakes around wgmma by serializing it, and still succeeds. Its messages C7500 to C7599 say so, and fail
# the build here.
set -euo pipefail
fatbin=$1 report=$2
shift 2
if ! "$@" --fatbin --no-compress --ptxas-options=-v -o "$fatbin" >"$report" 2>&1; then
  cat "$report" >&2
  exit 1
fi
if grep -E 'C75[0-9]{2}' "$report" >&2; then
  rm -f "$fatbin"
  echo "compile.sh: ptxas changed the kernel as its message above says; correct the kernel" >&2
  exit 1
fi
