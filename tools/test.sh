#!/usr/bin/env bash
# Builds Twinpath and runs what a change needs, or every test that this machine can run.
# The last line is "N passed, N failed"; the exit status is 0 only if nothing failed.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: tools/test.sh [--all] [--suite NAME]... [--report FILE] [--no-install] [--jobs N] [--help]

  without options what a change needs: one build with its suites, and the looks of the sources
  --all          every stage below that is not only for asking: what .ci/run does
  --suite NAME   only this suite of the plain build, or this stage, see below; a list is possible, and
                 giving it again.  Builds what these need
  --report FILE  write the table of programs and fabrics with pass or fail: a .json or .md file; a
                 .md file with report markers gets it between these (test/COMPATIBILITY.md has
                 them).  Runs stages softhca and vm, whose results it shows
  --no-install   install nothing; missing required packages end the run with the command to use
  --jobs N       compile jobs (default: number of processors)

Stages, in their order; those with a * are in --all only:
  plain    the plain build with its suites: unit, soft, fabric, topology, abi, gda, tools, package,
           lint, faults, patient (those of fabric that only wait), and gpu where there are GPUs;
           perf only when named
  demo     * tools/demo.sh: a release build, and the main job
  softhca  * other people's programs over the soft HCA
  vm       * real verbs under an emulated kernel (test/vm), TWINPATH_VM_SECONDS in all, default 660;
           and Linux' mlx5 driver on softhca --pci
  format   clang-format
  scripts  shellcheck
  asan, tsan
           * unit, soft, fabric, abi and gda again under address+undefined and thread sanitizers
  fuzz     * each fuzz target for TWINPATH_FUZZ_SECONDS, default 2; unit replays the corpora anyway
  tidy     only when named: clang-tidy on the lines that differ from TWINPATH_TIDY_BASE (origin/main)
  arm64    only when named: package and tests cross-built, run by qemu-user (test/arm64/run --help: packages)
  variants only when named, some 15 minutes: product and tools by g++ -O3, by clang++ with LTO, with
           --buildtype=plain and with dpkg-buildflags' hardening; warnings are errors

Build folders: build-test, build-asan (fuzz targets too), build-tsan.  Later runs tell how long the
rest will take.  Never asks anything.
Interrupted, it ends what it started and counts what was run.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tools/lib/common.sh
. "$root/tools/lib/common.sh"
# shellcheck source=tools/lib/stages.sh
. "$root/tools/lib/stages.sh"
all=no
report=
install=yes
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=yes ;;
    --quick) echo 'test.sh: --quick does nothing any more; all that takes long needs --all' >&2 ;;
    --suite)
      choose "${2:?--suite needs a name}"
      shift
      ;;
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
plan "$all" "$report"

# Settings of this script and of test/vm are none of the plugin, which warns of what it does not know.
export -n TWINPATH_FUZZ_SECONDS TWINPATH_VM_SECONDS TWINPATH_VM_CACHE TWINPATH_VM_KERNEL TWINPATH_TIDY_BASE

wrapper=''
# One at a time, tests keep half a processor busy.  Limits of time hold for one at a time.
test_processes=$((2 * jobs))

# --- packages
# shellcheck disable=SC2086,SC2154  # the list is a list, of tools/lib/common.sh
ensure_packages required $build_packages
if wanted asan || wanted tsan || wanted fuzz; then
  clang_release=$(apt-cache depends clang 2>/dev/null | grep -o -m 1 'clang-[0-9]*$' | cut -d- -f2)
  ensure_packages optional clang "libclang-rt-${clang_release:-14}-dev" || true
fi
if wanted format; then ensure_packages optional clang-format-14 || true; fi
if wanted scripts; then ensure_packages optional shellcheck || true; fi
if wanted plain; then ensure_packages optional dpkg-dev || true; fi

# shellcheck source=tools/lib/fetched.sh
. tools/lib/fetched.sh

# --- what is needed later is compiled where processors are idle: tests wait more than they compute
# shellcheck source=tools/lib/sanitized.sh
. tools/lib/sanitized.sh
tsan_by=none
if wanted tsan; then tsan_by=$(tsan_wrapper); fi
# Once the plain build is there.  Alone there is nothing to go beside.
begin_early_builds() {
  local ahead=()
  if wanted asan; then ahead+=(asan); fi
  if wanted tsan && [ "$tsan_by" != none ]; then ahead+=(tsan); fi
  if [ -z "$early" ] && [ ${#ahead[@]} -gt 0 ]; then early_builds "${ahead[@]}"; fi
}

# --- the plain build
say "source $(git describe --always --dirty 2>/dev/null || echo unknown), $(nproc) processors, $(uname -sr)"
# What the report is made of.
results=$root/build-test/results
if wanted softhca || wanted vm; then rm -rf "$results"; fi
mkdir -p "$results"

plain=no
plain_build() {
  local build_suites=()
  wanted softhca || wanted vm || mapfile -t build_suites < <(chosen_meson_suites)
  # Many sources to a unit take half the time.
  local options=(--buildtype=debugoptimized -Dwerror=true -Dtests=enabled -Dtools=enabled "-Dcpp_args=$line_tables")
  if build build-test "$jobs" 'plain build' --unity=on --unity-size=64 "${options[@]}"; then
    add 1 0
    plain=yes
  elif say 'plain build: again, one source at a time' &&
    build build-test "$jobs" 'plain build' --unity=off "${options[@]}"; then
    # Such units are what "meson setup" alone makes.
    fail 'plain build: two sources of a unit share a name, see above; one by one they compile'
    plain=yes
  else
    fail 'plain build' build-test/build.log
    plain=failed
  fi
}
# Which suites of the plain build, as arguments of meson test.
suite_arguments() {
  local suites
  mapfile -t suites < <(chosen_meson_suites)
  if [ ${#suites[@]} -gt 0 ]; then
    printf -- '--suite=%s\n' "${suites[@]}"
    return
  fi
  # Programs of others are run below, as a row of the table.
  printf -- '--no-suite=%s\n' perf softhca
  [ "$(gpu_count)" -gt 0 ] || echo --no-suite=gpu
}
if begin plain; then
  fetch_prometheus || true
  if [ "$(gpu_count)" -gt 0 ]; then
    TWINPATH_NCCL=$(find_nccl) && export TWINPATH_NCCL
  fi
  if [ -z "$(chosen_meson_suites)" ]; then
    if [ "$(gpu_count)" -eq 0 ]; then
      leave_out 'gpu suite' 'no GPU (nvidia-smi -L names none)'
    elif [ -z "${TWINPATH_NCCL:-}" ]; then
      leave_out 'NCCL tests' 'libnccl.so.2 not found; set TWINPATH_NCCL=/path/libnccl.so.2'
    fi
    [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] ||
      leave_out 'real adapters' 'no RDMA adapter in /sys/class/infiniband'
    leave_out 'perf suite' 'figures are for people to read: meson test -C build-test --setup all --suite perf'
  fi
  plain_build
  if [ $plain = yes ]; then
    mapfile -t arguments < <(suite_arguments)
    begin_early_builds
    run_suites plain build-test "${arguments[@]}" --timeout-multiplier 3
    info=$(find build-test -name twinpath-info -type f -perm -u+x | head -n 1)
    if [ -n "$info" ] || [ -z "$(chosen_meson_suites)" ]; then
      check 'plugin/SETTINGS.md is the table of options.cc' "${info:-twinpath-info}" --check-settings plugin/SETTINGS.md
    fi
  fi
fi

# --- README's first command.  Nothing else compiles with -O3, which finds what -O2 does not.
if wanted demo || wanted softhca || wanted vm; then begin_early_builds; fi
if begin demo; then
  rm -rf build-demo
  check "tools/demo.sh on $(uname -m), release build and run" \
    tools/demo.sh --no-install --jobs "$jobs" --build build-demo
fi

# --- the soft HCA and real verbs, side by side
# shellcheck source=tools/lib/vm_suite.sh
. tools/lib/vm_suite.sh
if begin softhca; then
  [ $plain != no ] || plain_build
  if [ $plain = yes ]; then
    fetch_pyverbs || leave_out "rdma-core's tests of libmlx5" 'python3-pyverbs cannot be had'
    fetch_mooncake || leave_out 'Mooncake' 'its wheel cannot be had (python3 -m pip download)'
    say 'programs over the soft HCA'
    ensure_packages optional ibverbs-utils perftest || true
    vm_suite soft
  fi
fi
if begin vm; then
  [ $plain != no ] || plain_build
  if [ $plain = yes ] && prepare_vm; then
    say "programs over real verbs, in virtual machines, ${TWINPATH_VM_SECONDS:-660} s at most"
    mapfile -t topologies < <(test/vm/suite --topologies | awk '$1 != "soft" {print $1}')
    vm_suite "${topologies[@]}"
    say "Linux' mlx5 driver on the software adapter's PCI function"
    vm_cases 'mlx5 driver' test/vm/mlx5 --build build-test
  fi
fi

# --- format.  Releases of clang-format differ; the tree is formatted with 14.
if begin format; then
  format=$(command -v clang-format-14 || command -v clang-format || true)
  if [ -n "$format" ] && "$format" --version | grep -q 'version 14\.'; then
    mapfile -t sources < <(find plugin proxy topology gda tools test -name '*.h' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu')
    check "clang-format of ${#sources[@]} files" "$format" --dry-run -Werror "${sources[@]}"
  else
    leave_out 'clang-format' 'needs release 14 (Debian 12, Ubuntu 24.04: clang-format-14)'
  fi
fi
if begin scripts; then
  if command -v shellcheck >/dev/null; then
    # Those that say which shell they are for, and what they read.
    mapfile -t scripts < <(find .ci tools test -type f -exec awk 'FNR == 1 && (FILENAME ~ /[.]sh$/ ||
      /^#!.*[\/ ](ba)?sh( |$)/ || /^# shellcheck shell=/) {print FILENAME} {nextfile}' {} +)
    check "shellcheck of ${#scripts[@]} scripts" shellcheck -x "${scripts[@]}"
  else
    leave_out 'shellcheck' 'not installed (Debian, Ubuntu: shellcheck)'
  fi
fi

# --- sanitizers and fuzzing
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
if begin asan; then sanitized asan 'asan+ubsan'; fi
if begin tsan; then
  if [ "$tsan_by" = none ]; then
    leave_out 'thread sanitizer' 'a program built with -fsanitize=thread does not start here'
  else
    wrapper=$tsan_by
    sanitized tsan tsan
    wrapper=''
  fi
fi
if begin fuzz; then
  if ! command -v clang++ >/dev/null; then
    leave_out 'fuzzing' 'no clang++'
  elif ! wanted asan && ! built fuzz; then
    fail 'asan+ubsan build' build-asan/build.log
  else
    fuzz
  fi
fi

# --- clang-tidy
if begin tidy; then
  # shellcheck source=tools/lib/tidy.sh
  . tools/lib/tidy.sh
  tidy
fi

# --- another architecture
if begin arm64; then
  if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
    TWINPATH_ARM64_JOBS=$jobs check 'package and tests cross-built for arm64, run by qemu-user' test/arm64/run
  else
    leave_out 'arm64' 'no cross compiler or no qemu-user; test/arm64/run --help names the packages'
  fi
fi

# --- other builds
if begin variants; then
  # shellcheck source=tools/lib/variants.sh
  . tools/lib/variants.sh
  variants
fi
end_stage

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
    fail "no report in $report"
  fi
fi

finish
