#!/usr/bin/env bash
# Builds Twinpath and runs every test suite that this machine can run.
# The last line is "N passed, N failed"; the exit status is 0 only if nothing failed.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: tools/test.sh [--quick] [--report FILE] [--no-install] [--jobs N] [--help]

  --quick        only the plain build: no virtual machines, no sanitizer builds, no fuzzing
  --report FILE  write the table of programs and fabrics with pass or fail: a .json or .md file; a
                 .md file with report markers gets it between these (test/COMPATIBILITY.md has
                 them).  Runs the virtual machines also with --quick
  --no-install   install nothing; missing required packages end the run with the command to use
  --jobs N       compile jobs (default: number of processors)

Suites: unit, soft, fabric, abi, tools, lint, faults, and gpu where there are GPUs; the VM suite
(test/vm: real verbs under an emulated kernel, TWINPATH_VM_SECONDS, default 660, in all); then unit,
soft, fabric, abi and gda again under address+undefined and thread sanitizers; then each fuzz
target for TWINPATH_FUZZ_SECONDS (default 48; 20 or 5 when it is late) seconds.  Build folders:
build-test, build-asan (fuzz targets too), build-tsan.  Some 35 minutes on two processors, first
run included; never asks anything.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
quick=no
report=
install=yes
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=yes ;;
    --report)
      report=${2:?--report needs a file, .md or .json}
      case $report in *.md | *.json) ;; *) echo "--report $report: a .md or .json file" >&2 && exit 2 ;; esac
      report=$(realpath -m "$report")
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
cd "$root" || exit 1
# shellcheck source=tools/lib/common.sh
. tools/lib/common.sh

# Settings of this script and of test/vm are none of the plugin, which warns of what it does not know.
export -n TWINPATH_FUZZ_SECONDS TWINPATH_VM_SECONDS TWINPATH_VM_CACHE TWINPATH_VM_KERNEL

totals=$(mktemp)
echo '0 0 0' >"$totals"
not_run=()
# add PASSED FAILED [SKIPPED]: what is no Meson test counts here.
add() {
  local p f s
  read -r p f s <"$totals"
  echo "$((p + $1)) $((f + $2)) $((s + ${3:-0}))" >"$totals"
}
# leave_out WHAT WHY
leave_out() {
  not_run+=("$1: $2")
  say "not run: $1: $2"
}
# check NAME COMMAND...: one test that is a command.
check() {
  local name=$1 log
  log=$(mktemp)
  shift
  if "$@" >"$log" 2>&1 </dev/null; then
    say "ok: $name"
    add 1 0
  else
    say "FAILED: $name"
    tail -n 40 "$log"
    add 0 1
  fi
  rm -f "$log"
}
# run_suites LABEL FOLDER [MESON TEST ARGUMENT...]
run_suites() {
  local label=$1 folder=$2
  shift 2
  rm -f "$folder/meson-logs/testlog-all.json"
  # shellcheck disable=SC2086  # an empty wrapper is no word
  quietly "$label: testing" "$folder/test.log" \
    $wrapper meson test -C "$folder" --no-rebuild --setup all --num-processes "$test_processes" "$@"
  if [ -s "$folder/meson-logs/testlog-all.json" ]; then
    python3 tools/lib/count_tests.py --totals "$totals" "$label" "$folder"
  else
    say "FAILED: $label: meson test ran nothing"
    tail -n 10 "$folder/test.log"
    add 0 1
  fi
}
wrapper=''
# Tests start processes that poll; more of them than processors only makes timeouts likelier.
test_processes=$(((jobs + 1) / 2))

# --- packages
clang_release=$(apt-cache depends clang 2>/dev/null | grep -o -m 1 'clang-[0-9]*$' | cut -d- -f2)
# shellcheck disable=SC2086  # the list is a list
ensure_packages required $build_packages
if [ "$quick" = no ]; then
  [ -n "$clang_release" ] || clang_release=$(apt-cache depends clang 2>/dev/null |
    grep -o -m 1 'clang-[0-9]*$' | cut -d- -f2)
  ensure_packages optional clang "libclang-rt-${clang_release:-14}-dev" || true
fi
ensure_packages optional clang-format || true

# rdma-core's own tests in Python, which drive the soft HCA's libmlx5: unpacked, not installed, as
# their packages bring udev.
fetch_pyverbs() {
  python3 -c 'import pyverbs.device' 2>/dev/null && return 0
  [ "$install" = yes ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
  local folder=$PWD/build-test/pyverbs
  if [ ! -d "$folder/usr" ]; then
    mkdir -p "$folder"
    (cd "$folder" && apt-get download -q python3-pyverbs python3-scapy &&
      for p in *.deb; do dpkg -x "$p" . || exit 1; done) >/dev/null 2>&1 || return 1
  fi
  export SOFTHCA_PYVERBS=$folder
}

# --- the plain build
say "source $(git describe --always --dirty 2>/dev/null || echo unknown), $(nproc) processors, $(uname -sr)"
# Programs of others are run below, as a row of the table.
suites=(--no-suite perf --no-suite softhca)
if [ "$(gpu_count)" -eq 0 ]; then
  suites+=(--no-suite gpu)
  leave_out 'gpu suite' 'no GPU (nvidia-smi -L names none)'
elif [ -z "$(find_nccl)" ]; then
  leave_out 'NCCL tests' 'libnccl.so.2 not found; set TWINPATH_NCCL=/path/libnccl.so.2'
else
  TWINPATH_NCCL=$(find_nccl)
  export TWINPATH_NCCL
fi
[ -d /sys/class/infiniband ] && [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] ||
  leave_out 'real adapters' 'no RDMA adapter in /sys/class/infiniband'
leave_out 'perf suite' 'figures are for people to read: meson test -C build-test --setup all --suite perf'

# What the report is made of.
results=$root/build-test/results
rm -rf "$results"
mkdir -p "$results"

plain=no
if build build-test "$jobs" 'plain build' --buildtype=debugoptimized -Dtests=enabled -Dtools=enabled; then
  add 1 0
  plain=yes
  run_suites plain build-test "${suites[@]}"
  info=build-test/tools/twinpath-info
  [ -x "$info" ] || info=$(find build-test -name twinpath-info -type f -perm -u+x | head -n 1)
  check 'plugin/SETTINGS.md is the table of options.cc' "${info:-twinpath-info}" --check-settings plugin/SETTINGS.md
else
  say 'FAILED: plain build'
  add 0 1
fi

# --- the soft HCA and real verbs, side by side
# shellcheck source=tools/lib/vm_suite.sh
. tools/lib/vm_suite.sh
if [ $plain = yes ]; then
  fetch_pyverbs || leave_out "rdma-core's tests of libmlx5" 'python3-pyverbs cannot be had'
  say 'programs over the soft HCA'
  ensure_packages optional ibverbs-utils perftest || true
  vm_suite soft
  if [ "$quick" = yes ] && [ -z "$report" ]; then
    leave_out 'VM suite' '--quick'
  elif prepare_vm; then
    say "programs over real verbs, in virtual machines, ${TWINPATH_VM_SECONDS:-660} s at most"
    mapfile -t topologies < <(test/vm/suite --topologies | awk '$1 != "soft" {print $1}')
    vm_suite "${topologies[@]}"
  fi
fi

# --- format.  Releases of clang-format differ; the tree is formatted with 14.
format=$(command -v clang-format-14 || command -v clang-format || true)
if [ -n "$format" ] && "$format" --version | grep -q 'version 14\.'; then
  mapfile -t sources < <(find plugin proxy topology gda tools test -name '*.h' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu')
  check "clang-format of ${#sources[@]} files" "$format" --dry-run -Werror "${sources[@]}"
else
  leave_out 'clang-format' 'needs release 14 (Debian 12: clang-format, Ubuntu 24.04: clang-format-14)'
fi

# --- sanitizers.  -O0 with g++: at -O2 g++ 12 warns falsely inside the standard library.  clang++,
# where it is, makes programs that run in half the time.  Many sources to a unit: a third of the time
# to compile; the plain build shows that each compiles alone.
sanitized_suites=(unit soft fabric abi gda)
# sanitized LABEL FOLDER SANITIZER [MESON OPTION...]
sanitized() {
  local label=$1 folder=$2 sanitizer=$3 build_suites=("${sanitized_suites[@]}")
  shift 3
  [ -n "$sanitizing_cxx" ] && local -x CXX=$sanitizing_cxx && set -- -Doptimization=1 "$@"
  set -- --buildtype=debug -Db_sanitize="$sanitizer" -Db_lundef=false -Dwerror=false \
    -Dtests=enabled -Dtools=disabled "$@"
  if build "$folder" "$jobs" "$label build" --unity=on --unity-size=16 "$@" || {
    # Two files of a unit may have chosen one name; whether there is more to it shows now.
    say "$label build: again, one source at a time"
    build "$folder" "$jobs" "$label build" --unity=off "$@"
  }; then
    add 1 0
    run_suites "$label" "$folder" "${sanitized_suites[@]/#/--suite=}" --timeout-multiplier 4
  else
    say "FAILED: $label build"
    add 0 1
  fi
}
# With clang++ one build serves the fuzz targets too.
sanitizing_cxx=$(command -v clang++ || true)
if [ -n "$sanitizing_cxx" ] && ! echo 'int main() { return 0; }' |
  "$sanitizing_cxx" -fsanitize=address,undefined -x c++ - -o /dev/null 2>/dev/null; then
  sanitizing_cxx='' # without its runtime libraries
fi
address_sanitized() {
  local fuzzing=()
  [ -n "$sanitizing_cxx" ] && fuzzing=(-Dfuzz=enabled -Dcpp_args=-fsanitize=fuzzer-no-link)
  sanitized 'asan+ubsan' build-asan address,undefined ${fuzzing[@]+"${fuzzing[@]}"}
}
# Compilers of Debian 12 cannot place TSan's shadow when the kernel randomises addresses widely; and
# where they can, some layouts make holes of it count as memory, so that fork is refused.
tsan_wrapper() {
  local dir
  dir=$(mktemp -d)
  echo 'int main() { return 0; }' >"$dir/a.cc"
  if ! "${sanitizing_cxx:-c++}" -fsanitize=thread "$dir/a.cc" -o "$dir/a" 2>/dev/null; then
    echo none
  elif setarch "$(uname -m)" -R "$dir/a" 2>/dev/null; then
    echo "setarch $(uname -m) -R"
  elif "$dir/a" 2>/dev/null; then
    echo ''
  else
    echo none
  fi
  rm -rf "$dir"
}
if [ "$quick" = yes ]; then
  leave_out 'sanitizer builds' '--quick'
else
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  address_sanitized
  wrapper=$(tsan_wrapper)
  if [ "$wrapper" = none ]; then
    leave_out 'thread sanitizer' 'a program built with -fsanitize=thread does not start here'
  else
    sanitized tsan build-tsan thread -Dfuzz=disabled
  fi
  wrapper=''
fi

# --- fuzzing
fuzz_seconds=${TWINPATH_FUZZ_SECONDS:-48}
fuzz() {
  local target name log pids=() names=() i most=$fuzz_seconds
  if [ $SECONDS -gt $((started + 1500)) ]; then
    most=5
  elif [ $SECONDS -gt $((started + 1200)) ]; then
    most=20
  fi
  if [ "$fuzz_seconds" -gt $most ]; then
    say "late: each fuzz target gets $most seconds instead of $fuzz_seconds"
    fuzz_seconds=$most
  fi
  for target in build-asan/test/fuzz/fuzz-*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    name=${target##*/fuzz-}
    names+=("$name")
    mkdir -p "build-asan/findings/$name" "build-asan/corpus/$name"
    timeout --kill-after=10 $((fuzz_seconds + 60)) "$target" -max_total_time="$fuzz_seconds" \
      -timeout=5 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="build-asan/findings/$name/" "build-asan/corpus/$name" \
      "build-asan/test/fuzz/corpus/$name" >"build-asan/$name.log" 2>&1 </dev/null &
    pids+=($!)
    say "fuzzing $name for $fuzz_seconds s"
    [ $((${#pids[@]} % jobs)) = 0 ] && wait "${pids[@]}" 2>/dev/null
  done
  if [ ${#pids[@]} -eq 0 ]; then
    say 'FAILED: no fuzz target was built'
    add 0 1
  fi
  for i in "${!pids[@]}"; do
    name=${names[$i]}
    log=build-asan/$name.log
    if wait "${pids[$i]}"; then
      say "ok: fuzz $name: $(awk '/number_of_executed_units/ {print $2}' "$log") inputs, no finding"
      add 1 0
    else
      say "FAILED: fuzz $name, input kept in build-asan/findings/$name"
      tail -n 30 "$log"
      add 0 1
    fi
  done
}
if [ "$quick" = yes ]; then
  leave_out 'fuzzing' '--quick'
elif ! command -v clang++ >/dev/null; then
  leave_out 'fuzzing' 'no clang++'
else
  fuzz
fi

# --- the report
if [ -n "$report" ]; then
  lines=()  # in the order of test/vm/topologies, which is the order of the table's rows
  while read -r name _; do
    [ -s "$results/$name.jsonl" ] && lines+=("$results/$name.jsonl")
  done < <(test/vm/suite --topologies)
  if python3 tools/lib/report.py --title "Source $(git describe --always --dirty 2>/dev/null || echo unknown), \
$(date -u +%F). A number counts test cases; an empty cell was not run." "$report" ${lines[@]+"${lines[@]}"}; then
    say "report written to $report"
  else
    say "FAILED: no report in $report"
    add 0 1
  fi
fi

# --- the end
read -r passed failed skipped <"$totals"
rm -f "$totals"
echo
if [ ${#not_run[@]} -gt 0 ]; then
  echo 'Not run on this machine:'
  printf '  %s\n' "${not_run[@]}"
fi
echo "Took $(elapsed) (minutes:seconds); $skipped test cases skipped, each named above with its reason."
[ "$passed" -eq 0 ] && failed=$((failed + 1))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
