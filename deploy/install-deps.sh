#!/usr/bin/env bash
# Installs what agmm is built, tested and shown with, from the distribution's own packages
# (tried on Debian 12). As root, or with sudo. Does nothing, at once, when all of it is there.
# With --long also what tests/run.sh --long wants, with --bench what tests/bench/run.sh compares with.
set -euo pipefail

# ocl-icd-opencl-dev: the CMake files of libdnnl-dev ask for it; agmm does not use it.
packages=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libucx-dev libabsl-dev libspdlog-dev libfmt-dev libdnnl-dev ocl-icd-opencl-dev
  libcli11-dev nlohmann-json3-dev libssl-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-format-14 python3 python3-numpy iproute2 procps
)

# The fuzzers are libFuzzer's; clang 14 has no _Float16.
if [[ ${1:-} == --long ]]; then packages+=(clang-16 libclang-rt-16-dev libomp-16-dev); fi
if [[ ${1:-} == --bench ]]; then packages+=(openmpi-bin libopenmpi-dev); fi

fail() {
  echo "install-deps.sh: $*" >&2
  exit 1
}

for tool in dpkg-query apt-get; do
  command -v "$tool" >/dev/null ||
    fail "there is no $tool, so this is no Debian or Ubuntu; install by hand: ${packages[*]}"
done

# Packages that dpkg has never heard of are no error here: they are missing.
installed=$(dpkg-query -W -f '${Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "install ok installed $package" <<<"$installed" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then exit 0; fi

run=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    fail "these packages are missing and installing them needs root or sudo: ${missing[*]}"
  run=(sudo)
fi
run+=(env DEBIAN_FRONTEND=noninteractive)

free_mib=$(df --output=avail -m /usr | tail -n 1)
((free_mib >= 2048)) || fail "/usr has ${free_mib} MiB free; the packages need 2048"

echo "installing: ${missing[*]}"
"${run[@]}" apt-get update -q || fail "apt-get update failed; see its messages above"
"${run[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}" ||
  fail "apt-get could not install ${missing[*]}; see its messages above"
