#!/bin/sh
# Instructions per message of a net plugin, both ends together, counted by callgrind.
#
# net_perf moves N and then 2N messages with both ends in one thread; the difference of the two
# counts, divided by N, leaves out everything that happens once.  The plugin's own part is told
# apart from the rest (net_perf's loop, libc) by the object file that callgrind names.
set -eu

usage() {
  cat <<END
usage: instructions.sh [--net-perf FILE] [--plugin FILE] [--size BYTES] [--messages N] [-- ARGS]
  --net-perf   the program [net_perf beside this script, in \$PATH, or in a build folder]
  --plugin     libnccl-net.so to measure [net_perf's choice]
  --size       bytes per message [8]
  --messages   N [2000]
  ARGS         more options for net_perf, e.g. --group 8
example: TWINPATH_FABRIC=soft tools/net_perf/instructions.sh --net-perf build/tools/net_perf/net_perf
END
}

program= plugin= size=8 messages=2000
while [ $# -gt 0 ]; do
  case $1 in
    --net-perf) program=$2; shift 2 ;;
    --plugin) plugin=$2; shift 2 ;;
    --size) size=$2; shift 2 ;;
    --messages) messages=$2; shift 2 ;;
    --help|-h) usage; exit 0 ;;
    --) shift; break ;;
    *) echo "instructions.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

here=$(dirname "$0")
if [ -z "$program" ]; then
  for candidate in "$here/net_perf" "$(command -v net_perf || true)" \
                   "$here"/../../build*/tools/net_perf/net_perf; do
    if [ -f "$candidate" ] && [ -x "$candidate" ]; then program=$candidate; break; fi
  done
fi
[ -n "$program" ] || { echo "instructions.sh: no net_perf found; give --net-perf" >&2; exit 2; }
command -v valgrind >/dev/null || {
  echo "instructions.sh: valgrind is not installed (Debian, Ubuntu: apt-get install valgrind)" >&2
  exit 2
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

count() {  # messages, output file; the rest goes to net_perf
  n=$1 out=$2; shift 2
  [ -z "$plugin" ] || set -- --plugin "$plugin" "$@"
  valgrind --tool=callgrind --callgrind-out-file="$out" "$program" --test callgrind \
    --sizes "$size" --iters "$n" --no-verify --poll yield --timeout 600 "$@" \
    >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
}

# Self cost summed over all code, over the plugin, and over its own data-path calls.
sums() {
  awk '
    /^c?ob=/ { id = $1; sub(/^c?ob=/, "", id); if (NF > 1) name[id] = $0  # named at first mention
               if ($1 ~ /^ob=/) ob = id; next }
    /^calls=/ { skip = 1; next }
    /^[0-9+*-]/ { if (skip) { skip = 0; next } all += $2; if (name[ob] ~ /libnccl-net/) own += $2 }
    END { printf "%d %d\n", all, own }' "$1"
}

count "$messages" "$work/one" "$@"
count $((2 * messages)) "$work/two" "$@"
set -- $(sums "$work/one") $(sums "$work/two")
awk -v n="$messages" -v size="$size" -v a1="$1" -v p1="$2" -v a2="$3" -v p2="$4" 'BEGIN {
  printf "%.1f instructions per %d-byte message, send and receive side together\n", (a2 - a1) / n, size
  printf "%.1f of them in the plugin\n", (p2 - p1) / n }'
