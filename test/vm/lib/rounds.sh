# shellcheck shell=bash
# Part of figures, runs inside the machine: rounds.sh BUILD ROUNDS LIMIT NAME=PLUGIN...
# Prints lines "KEY NAME VALUE", a value a round; with one plugin perftest is its neighbour.
# LIMIT: seconds a run of net_perf.
set -u
build=$1 rounds=$2 limit=$3
shift 3
perf=$build/tools/net_perf/net_perf
export TWINPATH_FABRIC=verbs NCCL_IB_GID_INDEX=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_TIMEOUT=16

# --- beside perftest
ours() { # KEY FIELD ARGUMENT...
  local key=$1 field=$2
  shift 2
  "$perf" --plugin "$plugin" --dev 0,1 --timeout 60 --json "$@" |
    sed -n "s/^ *\"$field\": \([0-9.]*\),*$/$key ours \1/p"
}
theirs() { # KEY COLUMN PROGRAM ARGUMENT...
  local key=$1 column=$2
  shift 2
  timeout 20 "$@" -d rxe1 -x 1 -F >/dev/null &
  sleep 1
  timeout 20 "$@" -d rxe0 -x 1 -F 10.77.0.2 |
    awk -v k="$key" -v c="$column" '$1 ~ /^[0-9]+$/ {print k, "perftest", $c}'
  wait
}
beside_perftest() {
  local size plugin=${1#*=}
  for size in 8:4000 64:4000 4k:1500 64k:200; do
    ours "rate_${size%:*}" median_messages_per_s --test solo --window 8 --repeats 1 \
      --sizes "${size%:*}" --iters "${size#*:}"
  done
  for size in 64:4000 4k:1500; do
    ours "group8_${size%:*}" median_messages_per_s --test solo --window 8 --group 8 --repeats 1 \
      --sizes "${size%:*}" --iters "${size#*:}"
  done
  ours bandwidth median_gbytes_per_s --test bw --sizes 64k --iters 500 --repeats 1 --window 8
  theirs bandwidth 4 ib_write_bw -s 65536 -n 500
  ours latency median_us --test latency --sizes 8 --iters 3000 --window 8 --poll spin
  theirs latency 5 ib_write_lat -s 8 -n 3000
}

# --- beside other plugins
packets() {
  local a b counter=ports/1/hw_counters/sent_pkts
  read -r a <"/sys/class/infiniband/rxe0/$counter"
  read -r b <"/sys/class/infiniband/rxe1/$counter"
  echo $((a + b))
}
# Packets are those of all repetitions, warm-up and verification; each size is a process of its own
# for their sake.
one() { # KEY MESSAGES ARGUMENT...
  local key=$1 messages=$2 plugin before groups=$2
  case $key in *_by8_*) groups=$((messages / 8)) ;; esac
  shift 2
  for plugin in "${plugins[@]}"; do
    before=$(packets)
    "$perf" --plugin "${plugin#*=}" --dev 0,1 --timeout "$limit" --json --test solo \
      --repeats 3 --iters "$messages" "$@" |
      awk -v k="$key ${plugin%%=*}" -F '[:,]' '/"median_messages_per_s"/ {print k, $2 + 0}'
    echo "packets_$key ${plugin%%=*} $((($(packets) - before) * 1000 * groups / messages /
      (3 * groups + groups / 10 + 1 + 8)))e-3"
  done
}
beside_plugins() {
  local loop
  plugins=("$@")
  for loop in window poll; do
    one ${loop}_8 4000 --loop $loop --window 8 --sizes 8
    one ${loop}_64 4000 --loop $loop --window 8 --sizes 64
    one ${loop}_4k 1500 --loop $loop --window 8 --sizes 4k
    one ${loop}_64k 200 --loop $loop --window 8 --sizes 64k
  done
  one window_by8_64 4000 --window 8 --group 8 --sizes 64
  one window_by8_4k 1600 --window 8 --group 8 --sizes 4k
  one group_by8_64 4000 --loop group --sizes 64
  one group_by8_4k 1600 --loop group --sizes 4k
}

for ((i = 0; i < rounds; i++)); do
  if [ $# = 1 ]; then beside_perftest "$1"; else beside_plugins "$@"; fi
done
