#!/usr/bin/env bash
# format.sh [--fix]: checks that all code has the layout of clang-format 14; with --fix, formats it.
set -euo pipefail
cd "$(dirname "$0")/../.."

format=$(command -v clang-format-14) || {
  echo "format.sh: clang-format-14 is missing; run deploy/install-deps.sh" >&2
  exit 1
}
if [[ ${1:-} == --fix ]]; then how=(-i); else how=(--dry-run -Werror); fi
find client daemon kernels proto tests \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0 |
  xargs -0 -n 40 -P 2 "$format" "${how[@]}"
