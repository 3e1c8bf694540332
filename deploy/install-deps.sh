#!/usr/bin/env bash
# Installs the packages that agmm needs for its build, tests and demo: the distribution's packages
# (tested on Debian 12), wheels from PyPI, and a virtual environment of Python for the Python package.
# Needs root or sudo. Exits at once if everything is installed. --bench adds the programs with which
# tests/bench/run.sh compares agmm.
set -euo pipefail
cd "$(dirname "$0")/.."

# clang-16 compiles the tests with the address sanitizer, and the fuzzers; clang 14 has no _Float16.
# ocl-icd-opencl-dev: the CMake files of libdnnl-dev require it; agmm does not use it.
packages=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libucx-dev libabsl-dev libspdlog-dev libfmt-dev libdnnl-dev ocl-icd-opencl-dev
  libcli11-dev nlohmann-json3-dev libssl-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-16 libclang-rt-16-dev libomp-16-dev clang-format-14
  python3 python3-numpy python3-pip python3-dev python3-venv iproute2 procps systemd binutils
)

# Debian's UCX 1.13 ends the process when a peer that was cut off comes back
# (daemon/transport/NOTES.md). cuobjdump and nvdisasm show the machine code of kernels to tests/sm90.
# The hashes are for the x86_64 and aarch64 packages.
wheels=(
  "libucx-cu13==1.22.0 \
    --hash=sha256:c6e0aaa82dc6e49dc3ddaac465b530e014f48b6c1c6b5ae74fbdd199d824351b \
    --hash=sha256:e9699f91804388ebc8b983c24e5bd8493eed769536fd6f93db523d2eb8f26f9a"
  "nvidia-cuda-cuobjdump==13.4.92 \
    --hash=sha256:fb72ca80d0cdd8f5e8e232ce17d3c5aa2a37c3153bb8ef4e010010ed4fdef6c5 \
    --hash=sha256:ed9ffbe59069e7ff94631ab4e279e5af7ee88ddafdf4c23f4a94d187f1470f03"
  "nvidia-cuda-nvdisasm==13.4.92 \
    --hash=sha256:f35a5b6ddb64b6758c22c0b078c5b6ff6d54f7c240cd74bf131ab5bf13b6c3fe \
    --hash=sha256:b007c08c8248b29281ed9a174b478d557b58ea8a921ab78369a2843f0718f77d"
)
# CMakeLists.txt looks in its subfolder libucx, and tests/sm90 in nvidia.
wheel_folder=/opt/agmm
# CMakeLists.txt looks here, too (AGMM_PYTHON).
environment=$wheel_folder/python

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
# The file says what was installed, because pip keeps the records of versions that it replaces.
wheels_missing=1
if [[ $(cat "$wheel_folder/wheels.txt" 2>/dev/null) == "${wheels[*]}" ]]; then wheels_missing=; fi
environment_missing=1
if cmp -s deploy/python.txt "$environment/installed.txt" && "$environment/bin/python" -c '' 2>/dev/null; then
  environment_missing=
fi
if ((${#missing[@]} == 0)) && [[ ! $wheels_missing && ! $environment_missing ]]; then exit 0; fi

run=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    fail "these are missing and installing them needs root or sudo: ${missing[*]} ${wheels_missing:+${wheels[*]%% *}} ${environment_missing:+$environment}"
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

# All at once, because pip replaces whole folders, and two of the wheels share one.
if [[ $wheels_missing ]]; then
  echo "installing: ${wheels[*]%% *} in $wheel_folder"
  "${run[@]}" mkdir -p "$wheel_folder" || fail "cannot create $wheel_folder"
  wanted=$(mktemp)
  trap 'rm -f "$wanted"' EXIT
  printf '%s\n' "${wheels[@]}" >"$wanted"
  "${run[@]}" /usr/bin/python3 -m pip install -q --no-deps --no-compile --only-binary :all: --upgrade \
    --root-user-action ignore --require-hashes -r "$wanted" --target "$wheel_folder" ||
    fail "pip could not install ${wheels[*]%% *} in $wheel_folder; see its messages above"
  echo "${wheels[*]}" | "${run[@]}" tee "$wheel_folder/wheels.txt" >/dev/null
fi

# A new list makes a new environment, because pip does not remove what only the old list had.
if [[ $environment_missing ]]; then
  echo "installing: deploy/python.txt in $environment"
  "${run[@]}" /usr/bin/python3 -m venv --clear "$environment" ||
    fail "cannot create the virtual environment $environment; see the messages above"
  pip=("${run[@]}" "$environment/bin/python" -m pip -q --disable-pip-version-check)
  "${pip[@]}" download --no-deps --only-binary :all: --require-hashes -r deploy/python.txt -d "$environment/wheels" &&
    "${pip[@]}" install --no-deps --no-index --find-links "$environment/wheels" --require-hashes -r deploy/python.txt ||
    fail "pip could not install deploy/python.txt in $environment; see its messages above"
  "${run[@]}" cp deploy/python.txt "$environment/installed.txt"
fi
