#!/usr/bin/env bash
# From a fresh checkout to the main job in one command: installs what is missing, builds, and
# runs an all-reduce through the plugin, on GPUs with NCCL where there are two, else between
# processes at the level of NCCL's net ABI.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tools/demo.sh [--no-install] [--jobs N] [--help]

  --no-install  install nothing; missing packages end the run with the command to use
  --jobs N      compile jobs (default: number of processors)

Builds a release in build-demo/.  With two or more GPUs and NCCL (found by the dynamic linker,
LD_LIBRARY_PATH, or TWINPATH_NCCL=/path/libnccl.so.2) runs coll_perf over the GPUs, otherwise over
four processes on host memory and net_perf.  Without an RDMA adapter, or with
TWINPATH_FABRIC=soft, traffic goes over the software HCA.  Never asks anything.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
install=yes
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
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

# shellcheck disable=SC2086  # the list is a list
ensure_packages required $build_packages
build build-demo "$jobs" 'release build' --buildtype=release -Dtests=disabled -Dtools=enabled ||
  die 'the build failed; all of its output is in build-demo/build.log'

tool() { find "$root/build-demo/tools" -name "$1" -type f -perm -u+x | head -n 1; }
coll_perf=$(tool coll_perf)
net_perf=$(tool net_perf)
plugin=$root/build-demo/plugin/nccl/libnccl-net.so

if [ -z "${TWINPATH_FABRIC:-}" ] && [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
  export TWINPATH_FABRIC=soft
fi
fabric=${TWINPATH_FABRIC:-auto}
results=$root/build-demo/results
mkdir -p "$results"

# show TITLE NAME COMMAND...: runs with progress, then prints the table.
show() {
  local title=$1 out=$results/$2.txt
  shift 2
  echo
  say "$title"
  echo "    \$ ${*/#$root\//}"
  if [ -t 1 ]; then
    # The tools draw their own progress on a terminal.
    "$@" </dev/null 2>&1 | tee "$out"
  else
    quietly 'running' "$out" "$@" || { cat "$out"; return 1; }
    cat "$out"
  fi
}

gpus=$(gpu_count)
nccl=$(find_nccl || true)
if [ "$gpus" -ge 2 ] && [ -n "$nccl" ]; then
  export NCCL_NET_GDR_LEVEL=${NCCL_NET_GDR_LEVEL:-SYS}
  # Large messages need more than NCCL's four channels to keep the copy engines busy.
  export NCCL_MIN_NCHANNELS=${NCCL_MIN_NCHANNELS:-16}
  say "$gpus GPUs and $nccl: the main job is NCCL's all-reduce through the plugin"
  show 'all-reduce over the GPUs, every element checked' coll_perf \
    "$coll_perf" --nccl "$nccl" --via-plugin --plugin "$plugin" --collective all_reduce -b 8 -e 256m -f 8 ||
    die 'the run failed; see above, and "Troubleshooting" in README.md'
  saw=("NCCL loaded libnccl-net.so and moved every byte of the all-reduce through it (NVLink and shared memory were switched off), fabric: $fabric."
    'Each line was checked element by element; busbw is the column to compare between transports, time the one for small sizes.'
    'Your own program does the same with NCCL_NET_PLUGIN set to this libnccl-net.so: see "With NCCL" in README.md.')
else
  if [ "$gpus" -lt 2 ]; then
    say "$gpus GPUs: NCCL needs two, so the same plugin moves host memory between processes"
  else
    say 'GPUs but no libnccl.so.2 (set TWINPATH_NCCL=/path/libnccl.so.2): host memory between processes instead'
  fi
  show 'one-way latency of small messages, two processes' latency \
    "$net_perf" --plugin "$plugin" --test latency --sizes 8,4k --repeats 5 ||
    die 'the run failed; see above, and "Troubleshooting" in README.md'
  show 'bandwidth, two processes' bandwidth \
    "$net_perf" --plugin "$plugin" --test bw --sizes 64k,1m --repeats 5 ||
    die 'the run failed; see above, and "Troubleshooting" in README.md'
  show 'all-reduce of four processes over the net ABI, every element checked' coll_perf \
    "$coll_perf" --plugin "$plugin" --cpu 4 -b 8 -e 4m -f 8 ||
    die 'the run failed; see above, and "Troubleshooting" in README.md'
  saw=("Processes opened libnccl-net.so exactly as NCCL does, connected, and moved real data through it, fabric: $fabric."
    'Ring and tree all-reduce came out right in every element; with two GPUs and NCCL this script runs the same over GPUs.'
    'These figures are of this machine and its processors, not of a network: nothing left the host on the software HCA.')
fi

echo
echo 'What you just saw'
printf '  %s\n' "${saw[@]}"
say "done; tables are in build-demo/results"
