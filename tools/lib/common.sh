# shellcheck shell=bash disable=SC2034,SC2154  # names are those of the script that reads this
# Shared by tools/demo.sh and tools/test.sh: progress lines, the packages a build needs, and
# installing them where that is allowed.  Meant to be sourced; needs bash.
#
# The caller sets: root (repository), install (yes|no).

started=$SECONDS

elapsed() { printf '%d:%02d' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }
say() { printf '[%s] %s\n' "$(elapsed)" "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Runs a command, its output into LOG, with a sign of life: on a terminal one line that is
# rewritten, elsewhere one line a minute.  Returns the command's status.
#   quietly TITLE LOG COMMAND...
quietly() {
  local title=$1 log=$2 pid ticks=0 last
  shift 2
  say "$title"
  # A group of its own: an interrupted script can end it with all that it started.
  set -m
  "$@" >"$log" 2>&1 </dev/null &
  set +m
  pid=$!
  # What is done at once costs no second.
  while [ $ticks -lt 10 ] && kill -0 "$pid" 2>/dev/null; do
    sleep 0.1
    ticks=$((ticks + 1))
  done
  ticks=1
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    ticks=$((ticks + 1))
    if [ -t 1 ]; then
      last=$(tail -c 300 "$log" | tr '\r' '\n' | tail -n 1 | cut -c 1-70)
      printf '\r\033[K[%s]   %s' "$(elapsed)" "$last"
    elif [ $((ticks % 60)) = 0 ]; then
      say "  still at it: $(tail -c 300 "$log" | tr '\r' '\n' | tail -n 1 | cut -c 1-90)"
    fi
  done
  [ -t 1 ] && printf '\r\033[K'
  wait "$pid"
}

build_packages='g++ meson ninja-build pkg-config catch2 nlohmann-json3-dev libcli11-dev libibverbs-dev libhwloc-dev python3'

# Of the named packages those that are not installed.
missing_packages() {
  local p
  for p in "$@"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$p"
  done
}

# ensure_packages required|optional PACKAGE...
# Installs what is missing when it may: root, or sudo without a password; asks nothing.
# Returns 1 when optional packages stay missing; required ones end the script unless the tools
# they bring are there already (another distribution, or a hand-made installation).
ensure_packages() {
  local need=$1 missing sudo='' command
  shift
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || {
    [ "$need" = optional ] && return 1
    have_build_tools && return 0
    die "this is not a Debian or Ubuntu system: install a C++20 compiler, meson >= 1.0.1, ninja," \
      "pkg-config, python3, libibverbs headers, CLI11, nlohmann-json and Catch2, then run this again"
  }
  missing=$(missing_packages "$@")
  [ -z "$missing" ] && return 0
  [ "$(id -u)" = 0 ] || sudo='sudo -n'
  command="${sudo:+sudo }apt-get install -y --no-install-recommends ${missing% }"
  if [ "$install" = no ] || { [ -n "$sudo" ] && ! sudo -n true 2>/dev/null; }; then
    [ "$need" = optional ] && { say "not installed: ${missing% } (would be: $command)"; return 1; }
    have_build_tools && { say "not installed, going on without: ${missing% }"; return 0; }
    die "these packages are missing: ${missing% }; install them and run this again: $command"
  fi
  say "installing ${missing% }"
  local log
  log=$(mktemp)
  # shellcheck disable=SC2086  # the lists are lists
  if ! { quietly 'apt-get update' "$log" $sudo apt-get update -q; \
    quietly 'apt-get install' "$log" $sudo env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -q --no-install-recommends $missing; }; then
    tail -n 5 "$log" >&2
    rm -f "$log"
    [ "$need" = optional ] && return 1
    die "apt-get could not install ${missing% }; try by hand: $command"
  fi
  rm -f "$log"
}

# apt-get update where that is allowed.
refresh_packages() {
  local sudo=''
  [ "$install" = yes ] && command -v apt-get >/dev/null || return 1
  [ "$(id -u)" = 0 ] || sudo='sudo -n'
  $sudo apt-get update -q
}

have_build_tools() {
  command -v meson >/dev/null && command -v ninja >/dev/null && command -v pkg-config >/dev/null &&
    command -v python3 >/dev/null && pkg-config --exists libibverbs &&
    { command -v g++ >/dev/null || command -v c++ >/dev/null || command -v clang++ >/dev/null; }
}

# Sets up (or keeps) a Meson build folder and compiles it: all of it, or what the suites in the
# array build_suites need.
#   build FOLDER JOBS TITLE [MESON OPTION...]
build_suites=()
build() {
  local folder=$1 jobs=$2 title=$3 log programs=()
  shift 3
  mkdir -p "$folder"
  log=$folder/build.log
  if [ -f "$folder/build.ninja" ]; then
    quietly "$title: configuring" "$log" meson setup --reconfigure "$folder" "$root" "$@"
  else
    quietly "$title: configuring" "$log" meson setup "$folder" "$root" "$@"
  fi || { tail -n 30 "$log"; return 1; }
  if [ ${#build_suites[@]} -gt 0 ]; then
    mapfile -t programs < <(python3 "$root/tools/lib/programs_of.py" "$folder" "${build_suites[@]}")
  fi
  quietly "$title: compiling with $jobs jobs" "$log" \
    ninja -C "$folder" -j "$jobs" ${programs[@]+"${programs[@]}"} || {
    grep -m 5 -E -A 5 'error|FAILED' "$log" || tail -n 30 "$log"
    return 1
  }
}

# How many GPUs there are (0 without a driver), and where NCCL is, if anywhere.
gpu_count() {
  local n
  n=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
  echo "${n:-0}"
}
find_nccl() {
  local path
  if [ -n "${TWINPATH_NCCL:-}" ]; then
    [ -e "$TWINPATH_NCCL" ] && echo "$TWINPATH_NCCL"
    return
  fi
  IFS=: read -r -a path <<<"${LD_LIBRARY_PATH:-}"
  local d
  for d in "${path[@]}"; do
    [ -e "$d/libnccl.so.2" ] && { echo "$d/libnccl.so.2"; return; }
  done
  d=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | awk '$1 == "libnccl.so.2" {print $NF; exit}')
  [ -n "$d" ] && { echo "$d"; return; }
  # The copy that a Python environment bundles (PyTorch's).
  python3 - 2>/dev/null <<'PY'
import pathlib, sys
for folder in sys.path:
    found = sorted(pathlib.Path(folder).glob("nvidia/nccl/lib/libnccl.so.2"))
    if found:
        print(found[0])
        break
PY
}
