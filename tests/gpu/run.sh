#!/usr/bin/env bash
# usage: tests/gpu/run.sh [--out FOLDER] [--share-gpu] [--dry-run]
#
# Checks and measures CUDA devices on a machine with one or more GPUs, in less than 8 minutes and
# without a network: from an unpacked bundle, or from a build folder whose programs AGMM_BIN names.
#
#   --out FOLDER   writes the table, probe.json and bench.json there; never those of a model
#   --share-gpu    also runs two daemons on one GPU, which slow each other down
#   --dry-run      runs every step with tiny sizes on the model of the driver; writes nothing
#
# Exits with 1 if a step failed, with 2 if none could be run.
set -euo pipefail

fail() {
  echo "run.sh: $*" >&2
  exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
out='' share=0 dry=0
while (($# > 0)); do
  case $1 in
    --out)
      (($# > 1)) || fail "--out wants a folder"
      out=$2
      shift
      ;;
    --share-gpu) share=1 ;;
    --dry-run) dry=1 ;;
    *) fail "$1 is not known; usage: run.sh [--out FOLDER] [--share-gpu] [--dry-run]" ;;
  esac
  shift
done
((!dry)) || [[ -z $out ]] || fail "--dry-run measures nothing; leave out --out $out"

bin=$(realpath "${AGMM_BIN:-$here/../../bin}") || fail "there is no folder of programs; set AGMM_BIN"
for program in agmmd agmmctl cuda_probe conformance_test gpu_bench sm90_bench; do
  [[ -x $bin/$program ]] || fail "$bin/$program is missing; build it with CUDA, or set AGMM_BIN"
done
if ((dry)); then
  model=$bin/../lib/model
  [[ -e $model/libcuda.so.1 ]] || fail "$model has no model of the driver; dry runs are for build folders"
  export LD_LIBRARY_PATH=$model${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export AGMM_MODEL=gpus=2,memory=8GiB,channels=32 # as many as the programs ask of a GPU
else
  export AGMM_TEST_GPU=1 # not the model, also where it was built
fi

# PyTorch brings cuBLASLt where no toolkit is installed.
cublaslt=libcublasLt.so.13
if [[ -z ${AGMM_CUBLASLT:-} && ! -e /usr/local/cuda/lib64/$cublaslt ]] && ((!dry)) &&
  [[ $(PATH=$PATH:/sbin ldconfig -p) != *$cublaslt* ]]; then
  found=$(python3 -c "import sys, pathlib
for folder in sys.path:
    for found in pathlib.Path(folder or '.').glob('nvidia/*/lib/$cublaslt'): print(found)" 2>/dev/null | head -n 1) || true
  if [[ -n $found ]]; then export AGMM_CUBLASLT=$found; fi
fi

machine=$("$bin/cuda_probe" none 2>&1 | head -n 1) || true
[[ $machine =~ 'GPUs '([0-9]+)$ ]] || fail "$machine"
gpus=${BASH_REMATCH[1]}
if [[ $machine == *MODEL* ]] && ((!dry)); then
  fail "$machine: a model, whose results are never recorded; use --dry-run"
fi
echo "$machine"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/results"
if ((dry)); then
  shape_a=61x53 shape_b=53x37
  cases='*Exact*/cuda*ring_*_r2_*:*Heap*/cuda*:*Failure*/cuda*'
else
  shape_a=509x331 shape_b=331x263
  # Leaves out the cases without waits, because their result on a GPU is undefined.
  cases='*/cuda:*/cuda_*:-*/cuda_model*:*WithoutThem*'
fi
small_cases='*Exact*/cuda*_ring_*_r2_*:*Exact*/cuda*_peer_f32_r2_n1_*'
export bin work gpus share dry shape_a shape_b cases small_cases here

# ---- The steps. Each runs in a shell of its own: exit code 77 skips, the last line says why. ----

skip() {
  echo "$*"
  exit 77
}

probe() { "$bin/cuda_probe" --json "$work/results/probe.json"; }

# list_cases FILTER LOG: sets `listed` to the number of matching cases, and fails if there are none,
# because GoogleTest would pass.
list_cases() {
  listed=$("$bin/conformance_test" --gtest_list_tests --gtest_filter="$1" 2>"$2" | grep -c '^  ') || true
  ((listed > 0)) || {
    grep 'kind cuda is skipped' "$2" || echo "no case of the list matches $1"
    return 1
  }
}

# Runs as many cases as time permits. conformance.txt names the cases that ran, in GoogleTest's
# format.
conformance() {
  local listed ran failed code=0 log=$work/cases.log list=$work/results/conformance.txt
  list_cases "$cases" "$log" || return 1
  timeout --kill-after=2 "$((limit - 5))" "$bin/conformance_test" --gtest_filter="$cases" >"$log" 2>&1 || code=$?
  grep -E '^\[ +(OK|FAILED|SKIPPED) +\] .* ms\)$' "$log" | sed 's/, where GetParam() = .*\( ([0-9]* ms)\)$/\1/' >"$list" || true
  ran=$(wc -l <"$list") failed=$(grep -c FAILED "$list") || true
  if ((code == 0)); then
    echo "$ran cases are exact"
    return 0
  fi
  grep -vE '^$|^\[(-+|=+| RUN +| +OK )\]' "$log" | tail -n 28 || true
  if ((code == 124 || code == 137)); then
    echo "$((limit - 5)) s were too short: $ran of $listed cases ran, $failed of them failed; conformance.txt names them"
  elif ((ran < listed)); then
    echo "ended with $code in $(sed -n 's/^\[ RUN *\] //p' "$log" | tail -n 1): $ran of $listed cases ran, $failed of them failed"
  else
    echo "$failed of $ran cases failed; the first is $(sed -nE 's/.* FAILED +\] (\S+) .*/\1/p' "$list" | head -n 1)"
  fi
  return 1
}

free_port() {
  local port
  while true; do
    port=$((20000 + RANDOM % 10000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
  done
  echo "$port"
}

ctl() { "$bin/agmmctl" --endpoint "unix:$folder/n0.sock" "$@"; }

# start NODES RANKS KIND: daemons with that many devices in all, in $folder. KIND: cpu, cuda, or
# shared for ranks that are all on GPU 0. Tests that run beside a dry run have the same models.
start() {
  local nodes=$1 ranks=$2 kind=$3 node rank fields world shared=false
  if ((dry)) || [[ $kind == shared ]]; then shared=true; fi
  local -a ports=()
  for ((node = 0; node <= nodes; ++node)); do ports+=("$(free_port)"); done
  world="world { cluster: \"run\" peer_port: ${ports[nodes]}"
  for ((node = 0; node < nodes; ++node)); do
    world+=" node { name: \"n$node\" address: \"127.0.0.1:${ports[node]}\" devices: $((ranks / nodes)) }"
  done
  echo "of this run alone: $RANDOM$RANDOM$RANDOM" >"$folder/secret"
  chmod 400 "$folder/secret"
  for ((node = 0; node < nodes; ++node)); do
    {
      echo "$world }"
      echo "local { node: \"n$node\" socket: \"$folder/n$node.sock\" secret: \"secret\" machines: \"none\""
      for ((rank = node; rank < ranks; rank += nodes)); do
        case $kind in
          cpu) fields='kind: "cpu"' ;;
          cuda) fields="kind: \"cuda\" gpu: $((rank % gpus)) shared_gpu: $shared" ;;
          shared) fields="kind: \"cuda\" gpu: 0 shared_gpu: $shared" ;;
        esac
        echo "device { $fields heap: \"64MiB\" }"
      done
      echo "}"
    } >"$folder/n$node.txtpb"
    "$bin/agmmd" --config "$folder/n$node.txtpb" 2>"$folder/n$node.log" &
    daemons+=($!)
  done
  local tries why=''
  for ((tries = 0; tries < 15; ++tries)); do
    if why=$(ctl status --ready --timeout 1s 2>&1); then return 0; fi
    kill -0 "${daemons[@]}" 2>/dev/null || break
  done
  why+=$(echo && tail -n 1 -q "$folder"/n*.log)
  echo "the world is not ready: ${why##*$'\n'}"
  return 1
}

# Fills, and the product by every algorithm, for each dtype.
products() {
  local dtype algorithm code
  for dtype in f32 bf16 f16; do
    ctl tensor fill U --shape "$shape_a" --dtype "$dtype" --sharding '[M, K_x]' --seed 3
    ctl tensor get U "$folder/products/fill.$dtype" --raw
    ctl tensor fill A --shape "$shape_a" --dtype "$dtype" --sharding '[M_x, K]' --kind integers --seed 1
    ctl tensor fill B --shape "$shape_b" --dtype "$dtype" --sharding '[K, N_x]' --kind integers --seed 2
    for algorithm in serial ring bidirectional_ring split_ring direct hierarchical hierarchical_peer torus peer; do
      code=0
      ctl job submit --bind A=A,B=B,C=C --algorithm "$algorithm" --wait --timeout 15s || code=$?
      # A plan that needs memory which the ranks do not share is refused (2).
      if ((code == 2)) && [[ $algorithm == *peer ]]; then continue; fi
      ((code == 0)) || return 1
      ctl tensor get C "$folder/products/$algorithm.$dtype" --raw
      ctl tensor rm C
    done
    ctl tensor rm U A B
  done
}

# world NAME NODES RANKS KIND: starts a world, keeps its products, and stops it cleanly.
world() {
  local daemon
  folder=$work/$1
  daemons=()
  mkdir -p "$folder/products"
  trap 'kill -KILL "${daemons[@]}" 2>/dev/null || true' EXIT
  start "${@:2}"
  products
  for daemon in "${daemons[@]}"; do kill -TERM "$daemon"; done
  for daemon in "${daemons[@]}"; do
    wait "$daemon" || {
      tail -n 3 "$folder"/n*.log
      return 1
    }
  done
}

reference() {
  world reference 1 2 cpu
  echo "what the GPUs are compared with"
}

# Like world, with the products compared with the reference bit by bit.
gpu_world() {
  local path name count=0
  [[ -e $work/reference/products/peer.f16 ]] || skip "the CPU world that it is compared with failed"
  world "$@"
  for path in "$work/$1"/products/*; do
    name=${path##*/}
    cmp "$path" "$work/reference/products/$name" || {
      echo "$name is not what a CPU world makes of it"
      return 1
    }
    ((count += 1))
  done
  echo "$count results have the bits of a CPU world"
}

own_gpus() {
  ((gpus > 1)) || skip "one GPU; --share-gpu runs two daemons on it"
  gpu_world daemons 2 "$((gpus - gpus % 2 < 8 ? gpus - gpus % 2 : 8))" cuda
}

shared_gpu() {
  ((share || dry)) || skip "not asked for; --share-gpu runs it"
  gpu_world shared 2 4 shared
}

# New operands and random delays in each of 1,000 epochs.
sm90() {
  local -a flags=(repeats)
  if ((dry)); then flags+=(--dry-run); fi
  "$bin/sm90_bench" "${flags[@]}" >"$work/results/sm90.json"
}

memcheck() {
  local tool listed code=0
  list_cases "$small_cases" "$work/small_cases.log" || return 1
  ((!dry)) || skip "the model executes no machine code"
  tool=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || skip "no compute-sanitizer here"
  "$tool" --tool memcheck --error-exitcode 9 "$bin/conformance_test" --gtest_filter="$small_cases" --gtest_brief=1
  # Ends with 77 on a GPU for which there are no kernels.
  "$tool" --tool memcheck --error-exitcode 9 "$bin/sm90_bench" --dry-run || code=$?
  ((code == 0 || code == 77)) || return "$code"
}

bench() {
  command -v python3 >/dev/null || skip "no python3 here"
  local -a flags=(--bin "$bin" --probe "$work/results/probe.json")
  if ((dry)); then flags+=(--dry-run); else flags+=(--out "$work/results/bench.json"); fi
  python3 "$here/bench.py" "${flags[@]}"
}

for name in $(compgen -A function); do export -f "${name?}"; done

# ---- The run. ----

# Seconds of all steps. A dry run has more time, because other tests run beside it.
slower=$((dry ? 3 : 1))
total=$((470 * slower))
failed=0
rows=()

# step NAME SECONDS COMMAND: runs COMMAND within that time and the rest of the total, which it sees
# as $limit, and adds a row to the table.
step() {
  local name=$1 limit=$(($2 * slower)) left=$((total - SECONDS)) log=$work/$1.log code=0 begin=$SECONDS why is
  ((limit <= left)) || limit=$left
  export limit
  if ((limit < 10)); then
    echo "the steps before took all of the $total s" >"$log"
    code=1
  else
    timeout --kill-after=5 "$limit" bash -c "set -euo pipefail; ${*:3}" >"$log" 2>&1 </dev/null || code=$?
  fi
  why=$(grep -v '^[[:space:]]*$' "$log" | tail -n 1) || true
  case $code in
    0) is=pass ;;
    77) is=skip ;;
    124 | 137) is=fail why="did not end within $limit s" ;;
    *) is=fail ;;
  esac
  rows+=("$(printf '%-12s %-5s %4d s  %s' "$name" $is $((SECONDS - begin)) "${why:0:240}")")
  echo "${rows[-1]}"
  if [[ $is == fail ]]; then
    failed=1
    tail -n 30 "$log" | sed 's/^/    /'
  elif [[ $name == bench && $is == pass ]]; then
    figures=$(<"$log")
  fi
}

step probe 80 probe
step reference 20 reference
step world-2 30 gpu_world world-2 1 2 cuda
step world-4 30 gpu_world world-4 1 4 cuda
step world-8 30 gpu_world world-8 1 8 cuda
step daemons 30 own_gpus
step shared 30 shared_gpu
step sm90 60 sm90
step memcheck 80 memcheck
step bench 130 bench
# Runs last, because it uses the time that the others have left.
step conformance $total conformance

if [[ ${figures:-} ]]; then printf '\n%s\n' "$figures"; fi
printf '\n%s\n' "$machine"
printf '%s\n' "${rows[@]}"
if [[ -n $out ]]; then
  mkdir -p "$out"
  printf '%s\n' "$machine" "${rows[@]}" >"$work/results/steps.txt"
  cp "$work"/results/* "$out/"
  echo "run.sh: results are in $out"
fi
exit $failed
