#!/bin/sh
# Instructions per message of a net plugin, both ends together, counted by callgrind.
#
# net_perf moves N and then 2N messages with both ends in one thread; the difference of the two
# counts, divided by N, leaves out everything that happens once.  The plugin's own part is told
# apart from the rest (net_perf's loop, libc, the fabric) by the object file that callgrind names.
# The software HCA is a library of its own, which is not counted as the plugin's: our plugin opens it for
# TWINPATH_FABRIC=soft; with --softhca it is under any plugin.
set -eu

usage() {
  cat <<END
usage: instructions.sh [OPTION...] [-- ARGS]
  --net-perf FILE  the program [net_perf beside this script, in \$PATH, or in a build folder]
  --plugin FILE    libnccl-net.so to measure [net_perf's choice]
  --softhca DIR    run over the software HCA's libibverbs.so.1 of this build folder, with
                   TWINPATH_FABRIC=verbs: the same fabric for any plugin that uses verbs
  --loop LOOP      window, one, group or poll, see net_perf --help [window]
  --size BYTES     per message [8]
  --messages N     [2000]
  --top N          also the N most costly functions of the plugin [0]
  ARGS             more options for net_perf, e.g. --group 8
Of what the plugin calls directly, libc's part (memset, locks) is shown apart from its own.
examples: TWINPATH_FABRIC=soft tools/net_perf/instructions.sh --net-perf build/tools/net_perf/net_perf
          tools/net_perf/instructions.sh --softhca build --loop one --size 64 --top 15 \\
            --plugin build/plugin/nccl/libnccl-net.so
END
}

program='' plugin='' softhca='' loop=window size=8 messages=2000 top=0
while [ $# -gt 0 ]; do
  case $1 in
    --net-perf|--plugin|--softhca|--loop|--size|--messages|--top)
      [ $# -ge 2 ] || { echo "instructions.sh: $1 needs a value" >&2; exit 2; } ;;
  esac
  case $1 in
    --net-perf) program=$2; shift 2 ;;
    --plugin) plugin=$2; shift 2 ;;
    --softhca) softhca=$2; shift 2 ;;
    --loop) loop=$2; shift 2 ;;
    --size) size=$2; shift 2 ;;
    --messages) messages=$2; shift 2 ;;
    --top) top=$2; shift 2 ;;
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

# The part of an object's path that tells the plugin: callgrind names the file behind links.
own=/libnccl-net
[ -z "$plugin" ] || [ ! -e "$plugin" ] || own=/$(basename "$(readlink -f "$plugin")")

count() {  # messages, output file; the rest goes to net_perf
  n=$1 out=$2; shift 2
  [ -z "$plugin" ] || set -- --plugin "$plugin" "$@"
  set -- valgrind --tool=callgrind --callgrind-out-file="$out" "$program" --test callgrind \
    --loop "$loop" --sizes "$size" --iters "$n" --no-verify --poll yield --timeout 600 "$@"
  [ -z "$softhca" ] || set -- bash "$here/../softhca/run" --build "$softhca" --files \
    env TWINPATH_FABRIC=verbs "$@"
  "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
}

# Lines "cost TAB what": "all" over all code, "plugin", "libc" below the plugin's direct calls, and
# "f NAME" for each function of the plugin.
sums() {
  awk -v own="$own" '
    function learn(line, names,   id) {  # a name follows its number at the first mention only
      match(line, /\([0-9]+\)/)
      id = substr(line, RSTART, RLENGTH)
      if (match(line, /\) /)) names[id] = substr(line, RSTART + 2)
      return id
    }
    function mine(object) { return index(objects[object], own) > 0 }
    /^ob=/ { ob = learn($0, objects); cob = ob; next }
    /^cob=/ { cob = learn($0, objects); next }
    /^fn=/ { fn = learn($0, functions); cob = ob; next }
    /^cfn=/ { learn($0, functions); next }
    /^calls=/ { call = 1; next }
    /^[0-9+*-]/ {
      if (call) {
        if (mine(ob) && objects[cob] ~ /\/(libc|libpthread)[.-]/) libc += $2
        call = 0; cob = ob; next
      }
      all += $2
      if (mine(ob)) { plugin += $2; cost[fn] += $2 }
    }
    END {
      printf "%d\tall\n%d\tplugin\n%d\tlibc\n", all, plugin, libc
      for (f in cost) printf "%d\tf %s\n", cost[f], functions[f]
    }' "$1"
}

count "$messages" "$work/one" "$@"
count $((2 * messages)) "$work/two" "$@"
sums "$work/one" >"$work/sums.one"
sums "$work/two" >"$work/sums.two"
awk -F '\t' -v n="$messages" 'NR == FNR { once[$2] += $1; next } { twice[$2] += $1 }
  END { for (w in twice) printf "%.1f\t%s\n", (twice[w] - once[w]) / n, w }' \
  "$work/sums.one" "$work/sums.two" | sort -rn >"$work/each"
awk -F '\t' -v size="$size" -v loop="$loop" -v top="$top" '
  $2 == "all" { all = $1 } $2 == "plugin" { plugin = $1 }
  # What one run did once and the other did not is no cost of a message.
  $2 == "libc" { libc = $1 <= 0 ? 0 : $1 }
  $2 ~ /^f / { if (++k <= top) lines = lines sprintf("%10.1f  %s\n", $1, substr($2, 3)) }
  END {
    printf "%.1f instructions per %d-byte message, send and receive side together, loop %s\n",
      all, size, loop
    printf "%.1f of them in the plugin\n%.1f in libc for it\n", plugin, libc
    printf "%s", lines
  }' "$work/each"
grep '^calls a message' "$work/log" || true
