#!/usr/bin/env bash
# From a fresh checkout to the main job in one command: installs what is missing, builds what it
# shows, and runs an all-reduce through the plugin, on GPUs with NCCL where there are two, else
# between processes at the level of NCCL's net ABI.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tools/demo.sh [--build FOLDER] [--no-install] [--jobs N] [--help]

  --build FOLDER  build folder [build]; it is set up as a release where it does
                  not exist, and used as it is where it does
  --no-install    install nothing; missing packages end the run with the
                  command to use
  --jobs N        compile jobs (default: number of processors)

Builds the plugin and the programs that it runs, and no others. With two or
more GPUs and NCCL (found by the linker, LD_LIBRARY_PATH, a Python package,
or by TWINPATH_NCCL=/path/libnccl.so.2) runs coll_perf over the GPUs,
otherwise net_perf and coll_perf between processes on host memory. Without
an RDMA adapter, or with TWINPATH_FABRIC=soft, traffic goes over the
software HCA. Never asks anything. NO_COLOR=1 turns colours off.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
install=yes
folder=build
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --build)
      folder=${2:?--build needs a folder}
      shift
      ;;
    --no-install) install=no ;;
    --jobs)
      jobs=${2:?--jobs needs a number}
      shift
      ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
cd "$root"
# shellcheck source=tools/lib/common.sh
. tools/lib/common.sh

# --- words: at most 80 columns; colours on a terminal only
bold='' green='' yellow='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
  bold=$'\e[1m' green=$'\e[32m' yellow=$'\e[33m' red=$'\e[31m' plain=$'\e[0m'
fi
wrapped() { fold -s -w "$1" | sed "2,\$s/^/$2/; s/ *\$//"; }
say() { printf '[%s] %s\n' "$(elapsed)" "$(printf '%s' "$*" | wrapped 72 '       ')"; }
title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
warn() { printf '%s%s%s\n' "$yellow" "$(printf '%s' "$*" | wrapped 78 '  ')" "$plain"; }
die() {
  printf '%s%s%s\n' "${red}" "$(printf 'error: %s' "$*" | wrapped 78 '  ')" "$plain" >&2
  exit 1
}

# A run that is interrupted leaves nothing behind: neither compilers nor apt-get with its lock.
interrupted() {
  trap '' INT TERM HUP
  [ ! -t 1 ] || printf '\r\033[K'
  printf '%sinterrupted by SIG%s: ending what was started%s\n' "$yellow" "$2" "$plain"
  stop_jobs 2>/dev/null || true
  exit $((128 + $1))
}
trap 'interrupted 2 INT' INT
trap 'interrupted 15 TERM' TERM
trap 'interrupted 1 HUP' HUP

# --- build
wanted=(nccl-net nccl-net-again plugin-alias nccl-tuner-twinpath twinpath-softhca twinpath-copier coll_perf net_perf
  twinpath-info)
set_up() {
  quietly 'setting up the build' "$folder/build.log" "$@" || {
    tail -n 30 "$folder/build.log"
    die "Meson cannot set up $folder/; all that it said is in $folder/build.log"
  }
}
united=no
# What it shows needs the programs, and no test.
dispensable=catch2
# shellcheck disable=SC2086  # the list is a list
ensure_packages required $build_packages
if [ -f "$folder/build.ninja" ]; then
  status=0
  told=$(python3 tools/lib/build_folder.py check "$folder" "$root") || status=$?
  case $status in
    0) [ -z "$told" ] || warn "$told" ;;
    2) set_up meson setup --reconfigure "$folder" "$root" ;;
    *) die "$told" ;;
  esac
else
  mkdir -p "$folder"
  # Many sources to a unit: a third of the time to compile.
  set_up meson setup "$folder" "$root" --buildtype=release -Dtools=enabled \
    -Dunity=on -Dunity_size=64
  united=yes
fi
declare -A files=()
while read -r name file; do files[$name]=$file; done < <(
  python3 tools/lib/build_folder.py targets "$folder" "${wanted[@]}")
compile() { quietly "$1" "$folder/build.log" ninja -C "$folder" -j "$jobs" "${files[@]}"; }
compile "compiling, $jobs at a time" || {
  # Two sources of a unit may have chosen one name; whether there is more to it shows now.
  [ $united = yes ] && set_up meson setup --reconfigure "$folder" "$root" -Dunity=off &&
    compile 'compiling again, one source at a time'
} || {
  grep -m 5 -E -A 5 'error|FAILED' "$folder/build.log" || tail -n 30 "$folder/build.log"
  die "the build failed; all of its output is in $folder/build.log"
}
path_of() {
  if [ -z "${files[$1]:-}" ] || [ ! -e "$folder/${files[$1]}" ]; then
    die "$folder/ has no $1; remove it and run this again"
  fi
  realpath "$folder/${files[$1]}"
}
coll_perf=$(path_of coll_perf)
net_perf=$(path_of net_perf)
plugin=$(path_of nccl-net)
if [ "$(realpath -m "$folder")" = "$root/$folder" ]; then shown=$folder; else shown=$(realpath "$folder"); fi

# --- runs
if [ -z "${TWINPATH_FABRIC:-}" ] && [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
  export TWINPATH_FABRIC=soft
fi
fabric=${TWINPATH_FABRIC:-auto}
# As coll_perf would set them by itself, with a line about each.
export NCCL_NET_PLUGIN=$plugin NCCL_NET=Twinpath
results=$folder/results
mkdir -p "$results"
failed="the run failed, see above; README.md has a section Troubleshooting"

was_busy=no
# look_at_load: says so where others use a quarter of the machine and more.
look_at_load() {
  local busy
  busy=$(python3 tools/lib/busy.py)
  [ $((10#${busy/./} * 4)) -lt $(($(nproc) * 10)) ] && return 0
  [ $was_busy = no ] || return 0
  was_busy=yes
  warn "This machine is busy: other programs use $busy of $(nproc) processors. Figures are worse than on a \
quiet one, and vary."
}

# show TITLE NAME COMMAND...: runs with the tool's own progress on a terminal, then prints the table.
show() {
  local out=$results/$2.json text status=0
  title "$1"
  shift 2
  text="\$ $*"
  text=${text//"$root/"/}
  printf '    %s\n' "$(printf '%s' "$text" | fold -s -w 70 | sed '$!s/ *$/ \\/; 2,$s/^/        /')"
  look_at_load
  # Standard error stays where it is: the tools draw their progress there when it is a terminal.
  # In the background, because a trap waits for what is in the foreground.
  set -m
  "$@" --json >"$out" </dev/null &
  set +m
  wait $! || status=$?
  if ! python3 tools/lib/demo_table.py "$out" || [ "$status" -ne 0 ]; then
    say "full output: $out"
    return 1
  fi
}

gpus=$(gpu_count)
nccl=$(find_nccl || true)
if [ "$gpus" -ge 2 ] && [ -n "$nccl" ]; then
  export NCCL_NET_GDR_LEVEL=${NCCL_NET_GDR_LEVEL:-SYS}
  # Large messages need more than NCCL's four channels to keep the copy engines busy.
  export NCCL_MIN_NCHANNELS=${NCCL_MIN_NCHANNELS:-16}
  say "$gpus GPUs and $nccl: NCCL's all-reduce through the plugin"
  show 'All-reduce over the GPUs, every element checked' coll_perf \
    "$coll_perf" --nccl "$nccl" --via-plugin --plugin "$plugin" --collective all_reduce -b 8 -e 256m -f 8 ||
    die "$failed"
  saw=("NCCL loaded the plugin and moved every byte of the all-reduce through it (NVLink and shared memory were switched off); fabric: $fabric."
    'Compare bus GB/s between transports for large buffers, time for small ones.')
else
  if [ "$gpus" -lt 2 ]; then
    say "$gpus GPUs, and NCCL needs two: host memory between processes instead"
  else
    say "$gpus GPUs but no libnccl.so.2 (set TWINPATH_NCCL=/path/libnccl.so.2): host memory between processes instead"
  fi
  show 'One-way latency of small messages, two processes' latency \
    "$net_perf" --plugin "$plugin" --test latency --sizes 8,4k --repeats 5 || die "$failed"
  show 'Bandwidth, two processes' bandwidth \
    "$net_perf" --plugin "$plugin" --test bw --sizes 64k,1m --repeats 5 || die "$failed"
  show 'All-reduce of four processes over the net ABI, every element checked' coll_perf \
    "$coll_perf" --plugin "$plugin" --cpu 4 -b 8 -e 4m -f 8 || die "$failed"
  saw=("Processes opened the plugin as NCCL does, connected, and moved data through it; fabric: $fabric."
    'Ring and tree all-reduce were right in every element. With two GPUs and NCCL this script runs all-reduce over the GPUs.')
  [ "$fabric" = soft ] && saw+=('On the software HCA no data left this host: the figures say what its processors do, not what a network would.')
fi
[ "$was_busy" = yes ] && saw+=('The machine was busy: run it again on a quiet one before you compare figures.')

# --- the end
item() { printf '  %s\n' "$(printf '%s' "$*" | wrapped 76 '    ')"; }
title 'What you saw'
for line in "${saw[@]}"; do item "$line"; done
title 'Where things are'
printf '  %-10s %s\n' plugin "$shown/${plugin#"$(realpath "$folder")/"}" \
  programs "$shown/tools/: net_perf, coll_perf, twinpath-info" \
  results "$shown/results/*.json" \
  'the rest' "ninja -C $shown builds twinpath-topo and softhca, too"
title 'What to do next'
item "Your own NCCL program: NCCL_NET_PLUGIN=$plugin"
[ "$fabric" = soft ] && item 'Without an adapter also: TWINPATH_FABRIC=soft NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1'
item 'To see that it is used: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV'
item "What the plugin finds here: $shown/tools/info/twinpath-info"
item 'Tests: tools/test.sh; all that this machine can run: tools/test.sh --all'
item 'README.md: first NCCL job, troubleshooting, and where everything else is written'
printf '\n%s%s%s\n' "$green" "[$(elapsed)] done" "$plain"
