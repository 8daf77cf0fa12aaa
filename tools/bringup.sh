#!/usr/bin/env bash
# The first hour with a real adapter: the steps of plugin/BRINGUP.md that a script can take, and all
# that they said in one file to send back.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: tools/bringup.sh [OPTION...]

Takes the steps of plugin/BRINGUP.md in their order, on this host and, with --peer, between two hosts,
says ok, FAILED or "not run" with the reason, and packs what each step printed.  Changes nothing.

  --peer HOST       the other host: steps 5, 6, 8, 9 and 10.  Same programs at the same path there
  --remote COMMAND  how to run a command there (default: "ssh -o BatchMode=yes"); gets HOST and
                    one argument, a shell command
  --address ADDR    this host as the peer reaches it (default: its host name)
  --port PORT       where the two ends meet (default: 29517)
  --gpu N           the GPU of steps 8 to 10 (default: 0)
  --build DIR       Meson build folder (default: the youngest build*/ of the source tree, else PATH)
  --steps LIST      only these, for example 2,3,4
  --keep-going      also after a step that failed; the default is to stop there
  --out DIR         where to write (default: ./bringup-HOST-DATE)
  --quick           small sizes and few iterations, to try the script itself
  --help            show this

Settings (NCCL_IB_HCA, TWINPATH_FABRIC, ...) are taken from the environment, and given to the peer.
Exit status: 0 all that was run passed, 1 a step failed, 2 bad arguments.
TEXT
}
bad() {
  printf 'bringup.sh: %s\n' "$*" >&2
  exit 2
}

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
peer='' remote='ssh -o BatchMode=yes' address=$(hostname) port=29517 gpu=0 build='' steps='' keep_going=no
out='' quick=no
while [ $# -gt 0 ]; do
  case $1 in
    --peer | --remote | --address | --port | --gpu | --build | --steps | --out)
      [ $# -ge 2 ] || bad "$1 needs a value; see --help"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --keep-going) keep_going=yes ;;
    --quick) quick=yes ;;
    --help | -h) usage && exit 0 ;;
    *) bad "unknown option $1; see --help" ;;
  esac
  shift
done
case $port in '' | *[!0-9]*) bad "--port $port: a number" ;; esac
case $gpu in '' | *[!0-9]*) bad "--gpu $gpu: a number" ;; esac
known=' 1 2 3 4 5 6 7 8 9 10 10a '
for step in ${steps//,/ }; do
  [[ $known == *" $step "* ]] || bad "--steps: there is no step $step; there are$known"
done

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
info=$(program twinpath-info info) topo=$(program twinpath-topo topo)
net_perf=$(program net_perf net_perf) coll_perf=$(program coll_perf coll_perf)
for name in "$info" "$topo" "$net_perf" "$coll_perf"; do
  [ -x "$name" ] || bad "the tools are not built or installed (${name:-twinpath-info}): meson setup build && ninja -C build"
done
[ -n "$out" ] || out=bringup-$(hostname)-$(date +%Y%m%d-%H%M%S)
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
export NCCL_DEBUG=${NCCL_DEBUG:-INFO}

# --- what is reported
results=()
stopped=''
failures=0
# note RESULT STEP TITLE DETAIL
note() {
  results+=("$1|$2|$3|$4")
  printf '%-8s step %-3s %s%s\n' "$1" "$2" "$3" "${4:+: $4}"
}
# due STEP TITLE: whether to take it.
due() {
  [ -z "$steps" ] || [[ ,$steps, == *,$1,* ]] || return 1
  [ -z "$stopped" ] || { note 'not run' "$1" "$2" "step $stopped failed"; return 1; }
}
# verdict STEP TITLE STATUS FILE BEGAN
verdict() {
  local why
  if [ "$3" = 0 ]; then
    note ok "$1" "$2" "$((SECONDS - $5)) s"
    return 0
  fi
  why="exit status $3, see $(basename "$4")"
  [ "$3" != 124 ] || why="did not end in time, see $(basename "$4")"
  note FAILED "$1" "$2" "$why"
  tail -n 12 "$4" | sed 's/^/           /'
  failures=$((failures + 1))
  [ "$keep_going" = yes ] || stopped=$1
  return 1
}
# attempt STEP TITLE SECONDS COMMAND...
attempt() {
  local step=$1 title=$2 limit=$3 file=$out/step-$1.txt began=$SECONDS
  shift 3
  due "$step" "$title" || return 0
  printf '$ %s\n' "$*" >>"$file"
  timeout --kill-after=5 "$limit" "$@" >>"$file" 2>&1 </dev/null
  verdict "$step" "$title" $? "$file" "$began"
}
# This shell's settings, as words of a shell.
settings() {
  local name
  while IFS= read -r name; do
    case $name in NCCL_* | TWINPATH_* | LD_LIBRARY_PATH | CUDA_VISIBLE_DEVICES) printf '%s=%q ' "$name" "${!name}" ;; esac
  done < <(compgen -e)
}
# both STEP TITLE SECONDS PROGRAM ARGUMENT...: rank 1 at the peer, rank 0 here.
both() {
  local step=$1 title=$2 limit=$3 file=$out/step-$1.txt began=$SECONDS near far first who=far other=near status words
  shift 3
  due "$step" "$title" || return 0
  words="cd / && env $(settings)timeout --kill-after=5 $limit $(printf '%q ' "$@" --rank 1/2 --rendezvous "$address:$port")"
  printf '$ %s --rank 0/2 --rendezvous %s\n' "$*" "$address:$port" >>"$file"
  printf '$ %s\n' "$words" >>"${file%.txt}-peer.txt"
  # shellcheck disable=SC2086  # a command and its options
  timeout --kill-after=5 $((limit + 10)) $remote "$peer" "$words" >>"${file%.txt}-peer.txt" 2>&1 </dev/null &
  far=$!
  timeout --kill-after=5 "$limit" "$@" --rank 0/2 --rendezvous "$address:$port" >>"$file" 2>&1 </dev/null &
  near=$!
  wait -n -p first $near $far
  status=$?
  [ "$first" = $far ] || { who=near other=far; }
  if [ $status != 0 ]; then
    sleep 1 # the other may have more to say, and would wait for this one then
    kill "${!other}" 2>/dev/null
  else
    who=$other
    wait "${!other}"
    status=$?
  fi
  wait $near $far
  [ $who = near ] || file=${file%.txt}-peer.txt
  port=$((port + 1)) # the last one may still be in use
  verdict "$step" "$title" $status "$file" "$began"
}
without() {
  due "$1" "$2" || return 0
  note 'not run' "$1" "$2" "$3"
}

# --- of this host, whatever the steps say
collect() {
  uname -a
  cat /etc/os-release 2>/dev/null
  for file in /sys/class/infiniband/*/fw_ver /sys/class/infiniband/*/board_id /sys/class/infiniband/*/hca_type; do
    [ ! -r "$file" ] || echo "$file: $(cat "$file")"
  done
  for command in 'ibv_devinfo -v' 'rdma link' 'ofed_info -s' 'nvidia-smi' 'nvidia-smi topo -m' 'lspci -tv' 'ip -br addr'; do
    command -v "${command%% *}" >/dev/null || continue
    echo "\$ $command"
    # shellcheck disable=SC2086
    timeout 20 $command 2>&1
  done
}
echo "writing to $out"
collect >"$out/host.txt" 2>&1
if [ -n "$peer" ]; then
  # shellcheck disable=SC2086
  timeout 40 $remote "$peer" "$(declare -f collect); collect" >"$out/host-peer.txt" 2>&1 </dev/null ||
    bad "cannot run a command at $peer with '$remote': $(tail -n 1 "$out/host-peer.txt")"
fi

# --- the steps
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

sizes=(-b 8 -e 16m -f 4)
few=()
if [ "$quick" = yes ]; then
  sizes=(--sizes '8,64k')
  few=(--iters 20 --repeats 2)
fi
ends=(-b 8 -e 16m)
[ "$quick" = no ] || ends=(-b 8 -e 64k)

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

alone='no --peer'
two='two hosts (net_perf latency, bw, rate, group)'
ring='ring and tree between two hosts (coll_perf --cpu)'
if [ -z "$peer" ]; then
  without 5 "$two" "$alone"
  without 6 "$ring" "$alone"
else
  for test in latency bw rate group; do
    more=("${sizes[@]}")
    case $test in rate | group) more=() ;; esac
    both 5 "two hosts (net_perf $test)" 300 "$net_perf" -v --test $test ${more[@]+"${more[@]}"} ${few[@]+"${few[@]}"}
  done
  both 6 "$ring" 300 "$coll_perf" --cpu 2 "${ends[@]}" --algo both
fi

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
if [ "${gpus:-0}" = 0 ]; then
  for step in 7 8 9 10; do
    case $step in
      7) title='GPU memory registers (twinpath-topo probe)' ;;
      8) title='GPU memory between two hosts (net_perf --gpu)' ;;
      9) title='NCCL between two hosts (coll_perf --via-plugin)' ;;
      10) title='the same with four queue pairs, split, adaptive routing' ;;
    esac
    without $step "$title" 'no GPU (nvidia-smi -L names none)'
  done
else
  registers() { "$1" probe && ! "$1" probe | grep -q '^not tried'; }
  export -f registers
  # shellcheck disable=SC2016
  attempt 7 'GPU memory registers (twinpath-topo probe)' 120 bash -c 'registers "$@"' - "$topo"
  if [ -z "$peer" ]; then
    without 8 'GPU memory between two hosts (net_perf --gpu)' "$alone"
    without 9 'NCCL between two hosts (coll_perf --via-plugin)' "$alone"
    without 10 'the same with four queue pairs, split, adaptive routing' "$alone"
  else
    both 8 'GPU memory between two hosts (net_perf --gpu)' 300 "$net_perf" -v --gpu "$gpu" --test bw "${sizes[@]}" ${few[@]+"${few[@]}"}
    both 9 'NCCL between two hosts (coll_perf --via-plugin)' 500 "$coll_perf" --via-plugin --gpus "$gpu" "${ends[@]}" --collective all
    export NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1 NCCL_IB_ADAPTIVE_ROUTING=1
    both 10 'the same with four queue pairs, split, adaptive routing' 500 "$coll_perf" --via-plugin --gpus "$gpu" "${ends[@]}" --collective all
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

# --- to send back
printf '%s\n' ${results[@]+"${results[@]}"} | python3 -c 'import json, sys
keys = ("result", "step", "title", "detail")
rows = [dict(zip(keys, line.rstrip("\n").split("|", 3))) for line in sys.stdin if "|" in line]
json.dump({"schema": "bringup/1", "steps": rows}, open(sys.argv[1], "w"), indent=2)' "$out/summary.json"
tar -C "$(dirname "$out")" -cf "$out.tar" "$(basename "$out")" && echo "to send back: $out.tar (look through it first: it names hosts and addresses)"
echo 'Steps 11 to 13 (faults, GIN) are for a person: plugin/BRINGUP.md'
[ $failures = 0 ]
