#!/usr/bin/env bash
# usage: deploy/demo.sh [--out C.npy] [A.npy B.npy]
#
# Multiplies two matrices (random by default) with two daemons that have two CPU devices each and
# communicate by UCX over loopback. Runs with overlap and without it alternate. The script checks the
# product against a product in double precision. --out keeps the product.
#
# Installs missing packages (as root or with sudo) and builds into build/, which
# `cmake --install build` can install. If $AGMM_BIN is set, uses the programs there and builds nothing.
# Stops its daemons at the end.
set -euo pipefail

fail() {
  echo "demo.sh: $*" >&2
  exit 1
}

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
  exit 0
fi
a='' b='' out=''
if [[ ${1:-} == --out ]]; then
  (($# >= 2)) || fail "--out needs a file: deploy/demo.sh [--out C.npy] [A.npy B.npy]"
  out=$(realpath "$2") || fail "the folder of $2 does not exist; create it or choose another --out"
  shift 2
fi
(($# == 0 || $# == 2)) ||
  fail "give two matrices or none: deploy/demo.sh [--out C.npy] [A.npy B.npy]"
if (($# == 2)); then
  for file in "$1" "$2"; do [[ -r $file ]] || fail "cannot read $file"; done
  a=$(realpath "$1") b=$(realpath "$2")
fi
cd "$(dirname "$0")/.."
python=/usr/bin/python3 # the interpreter of Debian's numpy
bin=${AGMM_BIN:-build/bin}
ready_deadline_s=30
work='' pids=() helper=''

# Stops the daemons, kills them after 5 s, and reaps them.
cleanup() {
  trap '' INT TERM HUP
  local pid tries
  if [[ -n $helper ]]; then
    kill -KILL "$helper" 2>/dev/null || true
    wait "$helper" 2>/dev/null || true
  fi
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    for ((tries = 0; tries < 50; ++tries)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  if [[ -n $work ]]; then rm -rf "$work"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# Runs python in the background and waits for it, so that Ctrl-C takes effect at once.
run_python() {
  "$python" "$@" </dev/stdin &
  helper=$!
  local code=0
  wait "$helper" || code=$?
  helper=''
  return "$code"
}

build() {
  if [[ -n ${AGMM_BIN:-} ]]; then return; fi
  deploy/install-deps.sh
  local free_mib log=build/demo-build.log
  free_mib=$(df --output=avail -m . | tail -n 1)
  [[ -x build/bin/agmmd ]] || ((free_mib >= 1024)) ||
    fail "$PWD has ${free_mib} MiB free; the build needs 1024"
  # An existing build folder keeps its configuration.
  [[ -f build/build.ninja || -f build/Makefile ]] || configure "$log"
  # Everything that `cmake --install build` installs.
  local make=(cmake --build build --target agmmd agmmctl agmm)
  # On a terminal the build shows its progress itself.
  if [[ -t 1 ]]; then
    "${make[@]}"
  else
    "${make[@]}" 2>&1 | tee "$log" | show_progress || {
      cat "$log" >&2
      fail "the build failed, see above"
    }
  fi
}

# Reads the output of a build from stdin and reports its progress on stderr: nothing for the first
# 5 s, then a line every 15 s.
show_progress() {
  local line next=$((SECONDS + 5))
  while IFS= read -r line; do
    [[ $line =~ ^\[\ *[0-9]+(/[0-9]+|%)\] ]] || continue
    ((SECONDS >= next)) || continue
    echo "demo.sh: building, ${BASH_REMATCH[0]} after $SECONDS s" >&2
    next=$((SECONDS + 15))
  done
}

# configure LOG
configure() {
  local log=$1 generate=(cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DAGMM_BUILD_TESTS=OFF
    -DAGMM_FAILPOINTS=OFF)
  if command -v ccache >/dev/null; then generate+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p build
  "${generate[@]}" >"$log" 2>&1 || {
    cat "$log" >&2
    fail "configuring failed, see above"
  }
}

# Prints three free TCP ports of loopback.
free_ports() {
  run_python - <<'PY'
import socket
sockets = [socket.socket() for _ in range(3)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))
PY
}

# Creates the matrices if none were given, and prints "M N K heap". The heap of a device has room for
# its part of A, B and C, and for the whole gathered A.
prepare_matrices() {
  run_python - "$1" "$2" "$3" <<'PY'
import sys
import numpy as np
a, b, make = sys.argv[1:]
if make == "yes":
    rng = np.random.default_rng()
    np.save(a, rng.standard_normal((2048, 1536), dtype=np.float32))
    np.save(b, rng.standard_normal((1536, 1280), dtype=np.float32))
try:
    (m, k), (k2, n) = (np.load(path, mmap_mode="r", allow_pickle=False).shape for path in (a, b))
except Exception as error:
    sys.exit(f"demo.sh: {a} and {b} are not two .npy matrices: {error}")
if k != k2:
    sys.exit(f"demo.sh: A is {m} x {k} and B is {k2} x {n}: A needs as many columns as B has rows")
heap = 4 * (2 * m * k + k2 * n + m * n) + (64 << 20)
print(m, n, k, f"{heap // (1 << 20) + 1}MiB")
PY
}

write_secret() { # file
  (umask 077 && head -c 32 /dev/urandom >"$1")
}

write_config() { # file, node name, ports, heap
  cat >"$1" <<CONFIG
world {
  cluster: "demo"
  node { name: "a" address: "127.0.0.1:$3" devices: 2 }
  node { name: "b" address: "127.0.0.1:$4" devices: 2 }
  peer_port: $peer_port
}
local {
  node: "$2"
  secret: "secret"
  device { kind: "cpu" threads: 1 heap: "$5" }
  device { kind: "cpu" threads: 1 heap: "$5" }
}
CONFIG
}

start_daemon() { # node name
  # The daemon dies with this script, even if the script is killed.
  setpriv --pdeathsig KILL "$bin/agmmd" --config "$work/$1.txtpb" >"$work/$1.log" 2>&1 &
  pids+=($!)
}

show_logs() {
  local node
  for node in a b; do
    echo "--- the end of the log of daemon $node" >&2
    tail -n 20 "$work/$node.log" >&2
  done
}

# Starts both daemons and waits until jobs can run. Returns 1 if another program has taken one of
# the ports since they were chosen (agmmd ends with 3).
start_world() {
  local deadline=$((SECONDS + ready_deadline_s)) pid code
  free_ports >"$work/ports"
  read -r port_a port_b peer_port <"$work/ports"
  write_secret "$work/secret"
  write_config "$work/a.txtpb" a "$port_a" "$port_b" "$heap"
  write_config "$work/b.txtpb" b "$port_a" "$port_b" "$heap"
  ctl=("$bin/agmmctl" --endpoint "127.0.0.1:$port_a")
  start_daemon a
  start_daemon b
  until "${ctl[@]}" --json status 2>/dev/null | grep -q '"ready":true'; do
    for pid in "${pids[@]}"; do
      if kill -0 "$pid" 2>/dev/null; then continue; fi
      code=0
      wait "$pid" || code=$?
      if ((code == 3)); then return 1; fi
      show_logs
      fail "a daemon ended with code $code"
    done
    ((SECONDS < deadline)) || {
      show_logs
      fail "the world was not ready within $ready_deadline_s s"
    }
    sleep 0.1
  done
}

stop_daemons() {
  local pid
  for pid in "${pids[@]}"; do
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  pids=()
}

# |C - C64| <= K 2^-23 |A||B| + 1 ulp, element by element; on large problems for 64 rows.
check_product() {
  run_python - "$@" <<'PY'
import sys
import numpy as np
a, b, c = (np.load(path, mmap_mode="r", allow_pickle=False) for path in sys.argv[1:])
m, k, n = a.shape[0], a.shape[1], b.shape[1]
if c.shape != (m, n):
    sys.exit(f"demo.sh: C is {c.shape}, not {(m, n)}")
rows = np.arange(m)
if m * n * k > 1 << 34:
    rows = np.sort(np.random.default_rng().choice(m, min(m, 64), replace=False))
a64, b64 = a[rows].astype(np.float64), np.asarray(b, dtype=np.float64)
exact = a64 @ b64
ulp = np.spacing(np.abs(exact).astype(c.dtype)).astype(np.float64)
bound = k * 2.0**-23 * (np.abs(a64) @ np.abs(b64)) + ulp
error = np.abs(c[rows].astype(np.float64) - exact)
if not (error <= bound).all():
    i, j = np.argwhere(~(error <= bound))[0]
    sys.exit(f"demo.sh: C[{rows[i]}, {j}] is {c[rows[i], j]} and should be {exact[i, j]}")
relative = np.linalg.norm(error) / max(np.linalg.norm(exact), np.finfo(np.float64).tiny)
allowed = np.linalg.norm(bound) / max(np.linalg.norm(exact), np.finfo(np.float64).tiny)
print(f"C is right: {len(rows)} of {m} rows compared with float64, relative error {relative:.1e} "
      f"(at most {allowed:.1e} is allowed)")
PY
}

build
work=$(mktemp -d "${TMPDIR:-/tmp}/agmm-demo.XXXXXX")
make=no
kept=$out
out=${out:-$work/C.npy}
if [[ -z $a ]]; then make=yes a=$work/A.npy b=$work/B.npy; fi
prepare_matrices "$a" "$b" "$make" >"$work/shape"
read -r m n k heap <"$work/shape"
tries=0
until start_world; do
  stop_daemons
  ((++tries < 5)) || fail "other programs took the chosen ports 5 times in a row; try again"
done

echo "== the world"
"${ctl[@]}" status
echo
echo "== A ($m x $k) times B ($k x $n), overlapped and one after the other"
"${ctl[@]}" matmul "$a" "$b" --out "$out" --compare | tee "$work/matmul.txt" || {
  # Exit code 2: the matrices do not match, so the daemons' logs say nothing about it.
  if ((PIPESTATUS[0] != 2)); then show_logs; fi
  fail "the product failed, see above"
}
echo
echo "== the schedule that ran"
field() { sed -n "s/^$1  *\(.*\)/\1/p" "$work/matmul.txt" | head -n 1; }
how=$(field algorithm)
chunks=$(sed -n 's/.*, \([0-9]*\) chunks\{0,1\} a shard.*/\1/p' <<<"$how")
dtype=$(head -n 1 "$work/matmul.txt" | grep -oE '\b(f32|bf16|f16)\b')
"${ctl[@]}" plan --shape "M=$m,N=$n,K=$k" --mesh x=4 --nodes 2 --dtype "$dtype" \
  --algorithm "${how%%[, ]*}" --chunks "${chunks:-1}" >"$work/plan.txt"
grep -qF "$(field plan)" "$work/plan.txt" ||
  fail "the plan that ran is not the one that agmmctl makes"
# Prints the summary, through the table of ranks, without the steps.
awk '/^$/ { if (++blank == 2) exit } { print }' "$work/plan.txt"
echo
check_product "$a" "$b" "$out"
if [[ -z $kept ]]; then
  echo "(the product is not kept; deploy/demo.sh --out C.npy keeps it)"
else
  echo "the product is in $kept"
fi
