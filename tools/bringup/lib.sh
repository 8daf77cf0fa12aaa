# shellcheck shell=bash disable=SC2154  # names are those of the script that reads this
# For tools/bringup.sh: what is collected of a host, and how a step is taken and told.

# collect: of a host, whatever the steps say.  Runs at the peer, too.
collect() {
  local file command
  for file in /etc/os-release /proc/version /proc/cmdline /proc/driver/nvidia/version /proc/driver/nvidia/params \
    /proc/modules /sys/module/{mlx5_core,mlx5_ib,ib_core,nvidia,nvidia_peermem,gdrdrv}/{version,srcversion} \
    /sys/class/infiniband/*/{fw_ver,board_id,hca_type} /sys/class/infiniband/*/ports/*/{rate,state,link_layer}; do
    [ ! -r "$file" ] || { echo "--- $file" && cat "$file"; }
  done
  for command in 'uname -a' 'getconf PAGESIZE' 'ulimit -a' 'nproc' 'lscpu' 'free -m' \
    'dpkg-query -W rdma-core libibverbs1 ibverbs-providers libnccl2' 'rpm -q rdma-core libibverbs libnccl' 'ofed_info -s' \
    'ibv_devinfo -v' 'rdma link' 'nvidia-smi' 'nvidia-smi topo -m' 'nvidia-smi -q' 'lspci -tv' 'ip -br addr' 'ip -d link'; do
    command -v "${command%% *}" >/dev/null || continue
    echo "\$ $command"
    # shellcheck disable=SC2086
    case $command in ulimit*) $command ;; *) timeout 20 $command 2>&1 ;; esac
  done
  command -v lspci >/dev/null && echo '$ lspci -vvv: access control (ACS) of bridges; empty unless root' &&
    lspci -vvv 2>/dev/null | awk '/^[0-9a-f]/ { at = $0 } /ACSCtl/ { print at; print }'
  return 0
}
kernel_log() { dmesg -T 2>&1 | tail -n 4000; }
# at_peer FUNCTION: one of these, whatever shell its user has.
at_peer() {
  # shellcheck disable=SC2086  # a command and its options
  timeout 90 $remote "$peer" "bash -c $(printf '%q' "$(declare -f "$1"); $1")" 2>&1 </dev/null
}
# The kernel's counters of all ports.
port_counters() {
  local file
  for file in /sys/class/infiniband/*/ports/*/{counters,hw_counters}/*; do
    [ ! -r "$file" ] || printf '%s %s\n' "$file" "$(cat "$file" 2>&1)"
  done
}
# What the kernel driver is asked, by everybody, in a buffer of its own; for root.
tracing='' trace_event=''
trace_begin() {
  local at
  for at in /sys/kernel/tracing /sys/kernel/debug/tracing; do
    [ -w "$at/events/mlx5/mlx5_cmd/enable" ] && mkdir "$at/instances/bringup-$$" 2>/dev/null || continue
    tracing=$at/instances/bringup-$$ trace_event=$tracing/events/mlx5/mlx5_cmd/enable
    echo 1 >"$trace_event"
    return
  done
}
trace_end() {
  [ -n "$tracing" ] || return 0
  echo 0 >"$trace_event"
  cat "$tracing/trace" >"$out/mlx5_cmd.txt"
  rmdir "$tracing"
  tracing=''
}

results=() stopped='' failures=0
# note RESULT STEP TITLE DETAIL [SECONDS]
note() {
  results+=("$1|$2|$3|$4|${5:-0}")
  printf '%-8s step %-4s %s%s\n' "$1" "$2" "$3" "${4:+: $4}"
}
# due STEP TITLE: whether to take it.
due() {
  [ -z "$steps" ] || [[ ,$steps, == *,$1,* ]] || return 1
  [ -z "$stopped" ] || { note 'not run' "$1" "$2" "step $stopped failed"; return 1; }
}
without() {
  due "$1" "$2" || return 0
  note 'not run' "$1" "$2" "$3"
}
# verdict STEP TITLE STATUS FILE BEGAN
verdict() {
  local took=$((SECONDS - $5)) why="exit status $3, see ${4##*/}"
  if [ "$3" = 0 ]; then
    note ok "$1" "$2" "$took s" $took
    return 0
  fi
  [ "$3" != 124 ] || why="did not end in time, see ${4##*/}"
  note FAILED "$1" "$2" "$why, $took s" $took
  tail -n 12 "$4" | sed 's/^/           /'
  case $2 in control:*) return 0 ;; esac # not ours
  failures=$((failures + 1))
  [ "$stop" = no ] || stopped=$1
}
# controlled STEP TITLE: whether NCCL itself can do the same; it needs an adapter.
controlled() {
  [ "${TWINPATH_FABRIC:-}" = soft ] || return 0
  without "$1" "$2" 'TWINPATH_FABRIC=soft'
  return 1
}
# attempt STEP TITLE SECONDS COMMAND...
attempt() {
  local step=$1 title=$2 limit=$3 file=$out/step-$1.txt began=$SECONDS
  shift 3
  due "$step" "$title" || return 0
  printf '$ %s%s\n' "$(settings)" "$*" >>"$file"
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
# pair STEP TITLE SECONDS FAR COMMAND...: the command here, the words of FAR at the peer.
pair() {
  local step=$1 title=$2 limit=$3 words=$4 file=$out/step-$1.txt began=$SECONDS near far first who=far other=near status
  shift 4
  due "$step" "$title" || return 0
  words="cd / && env $(settings)timeout --kill-after=5 $limit $words"
  printf '$ %s%s\n' "$(settings)" "$*" >>"$file"
  printf '$ %s\n' "$words" >>"${file%.txt}-peer.txt"
  # shellcheck disable=SC2086  # a command and its options
  timeout --kill-after=5 $((limit + 10)) $remote "$peer" "$words" >>"${file%.txt}-peer.txt" 2>&1 </dev/null &
  far=$!
  timeout --kill-after=5 "$limit" "$@" >>"$file" 2>&1 </dev/null &
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
# both STEP TITLE SECONDS PROGRAM ARGUMENT...: rank 1 at the peer, rank 0 here.
both() {
  local step=$1 title=$2 limit=$3
  shift 3
  pair "$step" "$title" "$limit" "$(printf '%q ' "$@" --rank 1/2 --rendezvous "$address:$port")" \
    "$@" --rank 0/2 --rendezvous "$address:$port"
}
# finish: the summary, and all in one file.
finish() {
  printf '%s\n' ${results[@]+"${results[@]}"} | python3 -c 'import json, sys
keys = ("result", "step", "title", "detail", "seconds")
rows = [dict(zip(keys, line.rstrip("\n").split("|", 4))) for line in sys.stdin if "|" in line]
json.dump({"schema": "bringup/1", "steps": [{**r, "seconds": int(r["seconds"])} for r in rows]},
          open(sys.argv[1], "w"), indent=2)' "$out/summary.json"
  tar -C "$(dirname "$out")" -cf "$out.tar" "$(basename "$out")" &&
    echo "to send back: $out.tar (look through it first: it names hosts, addresses and serial numbers)"
}
