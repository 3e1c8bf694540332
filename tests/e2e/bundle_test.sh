#!/usr/bin/env bash
# bundle_test.sh BUILD: the bundle of deploy/bundle.sh runs with nothing else but
# the C library: agmmctl plans, and a daemon starts, multiplies and stops.
set -euo pipefail
if ((EUID != 0)); then
  echo "SKIPPED: changing the root folder needs root"
  exit 77
fi
# All mounts disappear with this process.
if [[ ${AGMM_OWN_MOUNTS:-} != 1 ]]; then exec env AGMM_OWN_MOUNTS=1 unshare --mount "$0" "$@"; fi

work=$(mktemp -d)
daemon=''
cleanup() {
  if [[ -n $daemon ]]; then kill -KILL "$daemon" 2>/dev/null || true; fi
  umount "$work/root/proc" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

"$(dirname "$0")/../../deploy/bundle.sh" "$1" "$work/agmm.tar.gz"
root=$work/root
mkdir -p "$root"/{proc,tmp,dev}
tar -C "$root" -xzf "$work/agmm.tar.gz"
# The C library and its loader, at the same paths. Everything else comes from the bundle.
ldd "$root"/agmm/bin/* | sed -nE 's/^.*[[:space:]](\/[^[:space:]]+) \(0x.*$/\1/p' | sort -u |
  while read -r path; do
    if [[ $path == "$root"/* ]]; then continue; fi
    install -D "$(realpath "$path")" "$root$path"
  done
mount -t proc proc "$root/proc"
mknod "$root/dev/urandom" c 1 9

inside() { timeout 60 chroot "$root" "/agmm/bin/$1" "${@:2}"; }
inside agmmctl plan --shape M=64,N=64,K=64 --mesh x=4 | grep -q verified
chroot "$root" /agmm/bin/agmmd --socket /tmp/agmm.sock &
daemon=$!
ctl() { inside agmmctl --endpoint unix:/tmp/agmm.sock "$@"; }
for ((tries = 0; tries < 300; ++tries)); do
  if ctl status --ready >/dev/null 2>&1; then break; fi
  sleep 0.1
done
ctl tensor fill A --shape 100x50 --sharding '[M_x, K]' --kind integers
ctl tensor fill B --shape 50x70 --sharding '[K, N_x]' --kind integers
ctl job submit --spec 'A[M_x,K] * B[K,N_x] -> C[M,N_x]' --bind A=A,B=B,C=C --wait
kill -TERM "$daemon"
wait "$daemon"
daemon=''
echo "bundle_test.sh: ran in a folder of its own"
