#!/usr/bin/env bash
# The first hours with a real adapter: the steps of plugin/BRINGUP.md that a script can take, and all that
# they said in one file to send back; and what such a file says of our device model.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: tools/bringup.sh [OPTION...]
       tools/bringup.sh --read ARCHIVE

Takes the steps of plugin/BRINGUP.md in their order, on this host and, with --peer, between two hosts,
says ok, FAILED or "not run" with the reason and the time, and packs what each step printed, with raw
evidence of both hosts.  A step that fails ends no other.  Changes nothing; as root it also notes what the
kernel driver was asked meanwhile (trace point mlx5:mlx5_cmd).

  --peer HOST       the other host: steps 5, 6 and 8 to 10a.  Same programs at the same path there
  --remote COMMAND  how to run a command there (default: "ssh -o BatchMode=yes"); gets HOST and
                    one argument, a shell command
  --address ADDR    this host as the peer reaches it (default: its host name)
  --port PORT       where the two ends meet (default: 29517)
  --gpu N           the GPU of steps 8 to 13 (default: 0)
  --build DIR       Meson build folder (default: the youngest build*/ of the source tree, else PATH)
  --steps LIST      only these, for example 0a,0b,4
  --stop            none after one that failed
  --out DIR         where to write (default: ./bringup-HOST-DATE)
  --quick           small sizes and few iterations, to try the script itself
  --read ARCHIVE    what was packed: the steps, and which rules of the device model (tools/bringup/rules)
                    it contradicts
  --help            show this

Settings (NCCL_IB_HCA, TWINPATH_FABRIC, ...) are taken from the environment, and given to the peer.
Exit status: 0 all that was run passed, 1 a step failed (of ours, not a control), 2 bad arguments;
with --read 1 if a rule is contradicted.
TEXT
}
bad() {
  printf 'bringup.sh: %s\n' "$*" >&2
  exit 2
}

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
peer='' remote='ssh -o BatchMode=yes' address=$(hostname) port=29517 gpu=0 build='' steps='' stop=no
out='' quick=no read=''
while [ $# -gt 0 ]; do
  case $1 in
    --peer | --remote | --address | --port | --gpu | --build | --steps | --out | --read)
      [ $# -ge 2 ] || bad "$1 needs a value; see --help"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --stop) stop=yes ;;
    --quick) quick=yes ;;
    --help | -h) usage && exit 0 ;;
    *) bad "unknown option $1; see --help" ;;
  esac
  shift
done
[ -z "$read" ] || exec python3 "$here/bringup/read.py" "$read"
case $port in '' | *[!0-9]*) bad "--port $port: a number" ;; esac
case $gpu in '' | *[!0-9]*) bad "--gpu $gpu: a number" ;; esac
known=' 0a 0b 0c 1 2 3 4 5 6 7 8 9 10 10a 13a 13b 13c 13d 13e 13f 13g 13h '
for step in ${steps//,/ }; do
  [[ $known == *" $step "* ]] || bad "--steps: there is no step $step; there are$known"
done
# shellcheck source=tools/bringup/lib.sh
. "$here/bringup/lib.sh"

# program NAME FOLDER: its path.
if [ -z "$build" ]; then
  for candidate in "$here"/../build*/tools/info/twinpath-info; do
    [ -x "$candidate" ] || continue
    folder=${candidate%/tools/info/twinpath-info}
    [ -z "$build" ] || [ "$candidate" -nt "$build/tools/info/twinpath-info" ] && build=$folder
  done
else
  [ -x "$build/tools/info/twinpath-info" ] || bad "--build $build: holds no tools/info/twinpath-info"
fi
[ -z "$build" ] || build=$(cd "$build" && pwd)
program() {
  if [ -n "$build" ]; then echo "$build/tools/$2/$1"; else command -v "$1"; fi
}
info=$(program twinpath-info info) topo=$(program twinpath-topo topo) gda_perf=$(program gda_perf gda_perf)
net_perf=$(program net_perf net_perf) coll_perf=$(program coll_perf coll_perf)
for name in "$info" "$topo" "$net_perf" "$coll_perf"; do
  [ -x "$name" ] || bad "the tools are not built or installed (${name:-twinpath-info}): meson setup build && ninja -C build"
done
[ -n "$out" ] || out=bringup-$(hostname)-$(date +%Y%m%d-%H%M%S)
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
export NCCL_DEBUG=${NCCL_DEBUG:-INFO}

echo "writing to $out"
collect >"$out/host.txt" 2>&1
port_counters >"$out/counters-before.txt"
if [ -n "$peer" ]; then
  at_peer collect >"$out/host-peer.txt" ||
    bad "cannot run a command at $peer with '$remote': $(tail -n 1 "$out/host-peer.txt")"
  at_peer port_counters >"$out/counters-before-peer.txt"
fi
trace_begin
trap trace_end EXIT

# --- one port, no GPU, no second host: our commands to the adapter
evidence='what adapter and kernel say of themselves (evidence.py)'
commands='our commands to the adapter (gda-mlx5-commands)'
traffic='queues of ours, in host memory, one port (gda-mlx5-traffic)'
if [ "${TWINPATH_FABRIC:-}" = soft ]; then
  without 0a "$evidence" 'TWINPATH_FABRIC=soft'
  without 0b "$commands" 'TWINPATH_FABRIC=soft'
  without 0c "$traffic" 'TWINPATH_FABRIC=soft'
else
  # shellcheck disable=SC2016
  attempt 0a "$evidence" 120 bash -c 'python3 "$1" >"$2"' - "$here/bringup/evidence.py" "$out/evidence.json"
  devx=$(python3 "$here/bringup/evidence.py" 2>/dev/null | grep -c '"capabilities"')
  for step in 0b 0c; do
    case $step in 0b) title=$commands name=commands ;; 0c) title=$traffic name=traffic ;; esac
    if [ "$devx" = 0 ]; then
      without $step "$title" 'no mlx5 adapter with DevX'
    elif [ ! -x "$build/test/gda/mlx5/gda-mlx5-$name" ]; then
      without $step "$title" 'the tests are not built (-Dtests=enabled)'
    else
      attempt $step "$title" 300 env TWINPATH_FABRIC=verbs TWINPATH_TEST_RECORD="$out/devx-$step.jsonl" \
        TWINPATH_TEST_VECTORS="$here/../test/golden/mlx5" "$build/test/gda/mlx5/gda-mlx5-$name"
    fi
  done
fi

# --- the proxy path
active_port() {
  ibv_devinfo -v && ibv_devinfo | grep -q PORT_ACTIVE
}
export -f active_port
# shellcheck disable=SC2016  # for that shell
used_port='import json, sys
fabrics = json.load(open(sys.argv[1]))["fabrics"]
ports = [d["name"] for f in fabrics if f["selected"] for d in f["devices"]]
why = [f["why_not"] for f in fabrics if f.get("why_not")]
print("used:", ", ".join(ports) or "; ".join(why) or "nothing")
sys.exit(not ports)'
read_devices() {
  "$1" && "$1" --json >"$2/twinpath-info.json" && python3 -c "$3" "$2/twinpath-info.json"
}
export -f read_devices
read_machine() {
  "$1" && "$1" --json >"$2/twinpath-topo.json" && "$1" dump "$2/node.tar" || return 1
  "$1" check
  [ $? -le 2 ] # what is missing is for a person to judge
}
export -f read_machine

sizes=(-b 8 -e 16m -f 4) few=() ends=(-b 8 -e 16m) kernels=()
if [ "$quick" = yes ]; then
  sizes=(--sizes '8,64k') few=(--iters 20 --repeats 2) ends=(-b 8 -e 64k) kernels=(--iters 20 --warmup 2 --max 64k)
fi

fabric='the fabric works without us (ibv_devinfo: a port is active)'
if [ "${TWINPATH_FABRIC:-}" = soft ]; then
  without 1 "$fabric" 'TWINPATH_FABRIC=soft'
elif ! command -v ibv_devinfo >/dev/null; then
  without 1 "$fabric" 'ibv_devinfo is not installed (ibverbs-utils)'
else
  attempt 1 "$fabric" 60 bash -c active_port
fi
# shellcheck disable=SC2016
attempt 2 'adapters are opened and read (twinpath-info)' 60 \
  bash -c 'read_devices "$@"' - "$info" "$out" "$used_port"
# shellcheck disable=SC2016
attempt 3 'placement is read (twinpath-topo, check, dump)' 120 bash -c 'read_machine "$@"' - "$topo" "$out"
local_pairs() {
  local test
  for test in latency bw; do "$@" -v --test $test || return 1; done
}
export -f local_pairs
# shellcheck disable=SC2016
attempt 4 'one adapter, both ends here (net_perf latency, bw)' 400 \
  bash -c 'local_pairs "$@"' - "$net_perf" "${sizes[@]}" ${few[@]+"${few[@]}"}

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
two='two hosts (net_perf latency, bw, rate, group)'
ring='ring and tree between two hosts (coll_perf --cpu)'
far_memory='GPU memory between two hosts (net_perf --gpu)'
nccl='NCCL between two hosts (coll_perf --via-plugin)'
split='the same with four queue pairs, split, adaptive routing'
alone='no --peer' no_gpu='no GPU (nvidia-smi -L names none)'
if [ -z "$peer" ]; then
  without 5 "$two" "$alone"
  without 6 "$ring" "$alone"
else
  if [ "${TWINPATH_FABRIC:-}" != soft ] && command -v ib_write_bw >/dev/null; then
    pair 5 'control: perftest between the hosts' 120 \
      "bash -c $(printf %q "sleep 2; exec ib_write_bw -D 3 $address")" ib_write_bw -D 3
  fi
  for test in latency bw rate group; do
    more=("${sizes[@]}")
    case $test in rate | group) more=() ;; esac
    both 5 "two hosts (net_perf $test)" 300 "$net_perf" -v --test $test ${more[@]+"${more[@]}"} ${few[@]+"${few[@]}"}
  done
  both 6 "$ring" 300 "$coll_perf" --cpu 2 "${ends[@]}" --algo both
fi

# --- GPUs.  Before each step of ours NCCL's own transport does the same.
# nccl_between STEP TITLE
nccl_between() {
  local all=("$coll_perf" --gpus "$gpu" "${ends[@]}" --collective all)
  ! controlled "$1" "control: NCCL's own transport, $2" ||
    own_transport "$1" "control: NCCL's own transport, $2" 500 "${all[@]}"
  both "$1" "$2" 500 "${all[@]}" --via-plugin
}
own_transport() {
  local -x NCCL_NET=IB NCCL_NET_PLUGIN=none NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
  both "$@"
}
if [ "${gpus:-0}" = 0 ]; then
  without 7 'GPU memory registers, doorbells are tried (twinpath-topo probe)' "$no_gpu"
  without 8 "$far_memory" "$no_gpu"
  without 9 "$nccl" "$no_gpu"
  without 10 "$split" "$no_gpu"
else
  registers() { "$1" probe && ! "$1" probe | grep -q '^not tried'; }
  export -f registers
  # shellcheck disable=SC2016
  attempt 7 'GPU memory registers, doorbells are tried (twinpath-topo probe)' 120 bash -c 'registers "$@"' - "$topo"
  if [ -z "$peer" ]; then
    without 8 "$far_memory" "$alone"
    without 9 "$nccl" "$alone"
    without 10 "$split" "$alone"
  else
    both 8 "$far_memory" 300 "$net_perf" -v --gpu "$gpu" --test bw "${sizes[@]}" ${few[@]+"${few[@]}"}
    nccl_between 9 "$nccl"
    export NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1 NCCL_IB_ADAPTIVE_ROUTING=1
    nccl_between 10 "$split"
    unset NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_ADAPTIVE_ROUTING
  fi
fi
if [ -z "$peer" ]; then
  without 10a 'enhanced connection establishment off and on' "$alone"
else
  for ece in 0 1; do
    export NCCL_IB_ECE_ENABLE=$ece
    both 10a "two hosts with NCCL_IB_ECE_ENABLE=$ece (net_perf bw)" 300 "$net_perf" -v --test bw "${sizes[@]}" ${few[@]+"${few[@]}"}
  done
  unset NCCL_IB_ECE_ENABLE
fi
# shellcheck source=tools/bringup/kernels.sh
. "$here/bringup/kernels.sh"

# --- to send back
trace_end
port_counters >"$out/counters-after.txt"
kernel_log >"$out/dmesg.txt"
if [ -n "$peer" ]; then
  at_peer port_counters >"$out/counters-after-peer.txt"
  at_peer kernel_log >"$out/dmesg-peer.txt"
fi
finish
echo 'Steps 11 and 12 and the rest of 13 (faults, GIN between hosts) are for a person: plugin/BRINGUP.md'
[ $failures = 0 ]
