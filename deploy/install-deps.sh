#!/usr/bin/env bash
# Installs the packages that agmm needs for its build, tests and demo: the distribution's packages
# (tested on Debian 12), and UCX from PyPI. Needs root or sudo. Exits at once if everything is
# installed. --bench adds the programs with which tests/bench/run.sh compares agmm.
set -euo pipefail

# clang-16 compiles the tests with the address sanitizer, and the fuzzers; clang 14 has no _Float16.
# ocl-icd-opencl-dev: the CMake files of libdnnl-dev require it; agmm does not use it.
packages=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libucx-dev libabsl-dev libspdlog-dev libfmt-dev libdnnl-dev ocl-icd-opencl-dev
  libcli11-dev nlohmann-json3-dev libssl-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-16 libclang-rt-16-dev libomp-16-dev clang-format-14 python3 python3-numpy python3-pip iproute2 procps systemd binutils patchelf
)

# Debian's UCX 1.13 ends the process when a peer that was cut off comes back
# (daemon/transport/NOTES.md). The hashes are for the x86_64 and aarch64 packages.
ucx=libucx-cu13==1.22.0
ucx_hashes=(
  --hash=sha256:c6e0aaa82dc6e49dc3ddaac465b530e014f48b6c1c6b5ae74fbdd199d824351b
  --hash=sha256:e9699f91804388ebc8b983c24e5bd8493eed769536fd6f93db523d2eb8f26f9a
)
ucx_folder=/opt/agmm # CMakeLists.txt looks in its subfolder libucx

if [[ ${1:-} == --bench ]]; then packages+=(openmpi-bin libopenmpi-dev); fi

fail() {
  echo "install-deps.sh: $*" >&2
  exit 1
}

for tool in dpkg-query apt-get; do
  command -v "$tool" >/dev/null ||
    fail "there is no $tool, so this is no Debian or Ubuntu; install by hand: ${packages[*]}"
done

# Packages that dpkg does not know are not an error here; they count as missing.
installed=$(dpkg-query -W -f '${Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "install ok installed $package" <<<"$installed" || missing+=("$package")
done
ucx_missing=1
if [[ $(cat "$ucx_folder/libucx/UCX_WHEEL_VERSION.txt" 2>/dev/null) == "${ucx#*==}" ]]; then ucx_missing=; fi
if ((${#missing[@]} == 0)) && [[ ! $ucx_missing ]]; then exit 0; fi

run=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    fail "these are missing and installing them needs root or sudo: ${missing[*]} ${ucx_missing:+$ucx}"
  run=(sudo)
fi
run+=(env DEBIAN_FRONTEND=noninteractive)

if ((${#missing[@]} > 0)); then
  free_mib=$(df --output=avail -m /usr | tail -n 1)
  ((free_mib >= 2048)) || fail "/usr has ${free_mib} MiB free; the packages need 2048"
  echo "installing: ${missing[*]}"
  "${run[@]}" apt-get update -q || fail "apt-get update failed; see its messages above"
  "${run[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install ${missing[*]}; see its messages above"
fi

if [[ $ucx_missing ]]; then
  echo "installing: $ucx in $ucx_folder"
  "${run[@]}" mkdir -p "$ucx_folder" || fail "cannot create $ucx_folder"
  wanted=$(mktemp)
  trap 'rm -f "$wanted"' EXIT
  echo "$ucx ${ucx_hashes[*]}" >"$wanted"
  "${run[@]}" /usr/bin/python3 -m pip install -q --no-deps --no-compile --only-binary :all: --upgrade \
    --root-user-action ignore --require-hashes -r "$wanted" --target "$ucx_folder" ||
    fail "pip could not install $ucx in $ucx_folder; see its messages above"
fi
