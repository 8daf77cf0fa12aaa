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

# has_program PID NAME: whether a program of that name is among what PID has started.  A process that
# ends meanwhile makes cat fail, which says nothing.
has_program() {
  { cat /proc/[0-9]*/stat 2>/dev/null || true; } | sed 's/^\([0-9]*\) (\(.*\)) . \([0-9]*\) .*/\1 \3 \2/' |
    awk -v top="$1" -v wanted="$2" '{ parent[$1] = $2; name[$1] = $3 }
      END { for (p in name) if (name[p] == wanted) for (q = p; q > 1; q = parent[q]) if (q == top) found = 1
            exit !found }'
}

# tell_group SIGNAL PID: to PID and its group; what sudo started is root's.
tell_group() {
  kill "-$1" -- "-$2" 2>/dev/null || kill "-$1" "$2" 2>/dev/null || [ ! -d "/proc/$2" ] ||
    sudo -n sh -c "kill -$1 -- -$2" 2>/dev/null
}

# Ends what was started: each job is a group of processes, and meson ends its tests' groups.  dpkg is
# waited for, two minutes at most: cut short it leaves packages half installed, and apt-get refuses to
# work until somebody repairs that.
stop_jobs() {
  local pids pid tries
  read -r -d '' -a pids <<<"$(jobs -p)"
  for pid in ${pids[@]+"${pids[@]}"}; do
    tries=0
    while has_program "$pid" dpkg && [ $tries -lt 120 ]; do
      [ $tries != 0 ] || say 'waiting until dpkg has finished what it is at'
      sleep 1
      tries=$((tries + 1))
    done
    tell_group TERM "$pid"
  done
  for pid in ${pids[@]+"${pids[@]}"}; do
    tries=0
    while { kill -0 -- "-$pid" 2>/dev/null || [ -d "/proc/$pid" ]; } && [ $tries -lt 50 ]; do
      sleep 0.2
      tries=$((tries + 1))
    done
    tell_group KILL "$pid"
  done
}

build_packages='g++ meson ninja-build pkg-config catch2 nlohmann-json3-dev libcli11-dev libibverbs-dev libhwloc-dev python3'
# Those of them without which there is a build, if a smaller one.
dispensable='catch2 nlohmann-json3-dev libcli11-dev'

# Whether what a package brings is there, however it came: a program in PATH (of a Python environment,
# of a module), a library that pkg-config finds, which is where Meson looks first.
is_there() {
  case $1 in
    g++) command -v g++ || command -v c++ || command -v clang++ ;;
    ninja-build) command -v ninja ;;
    catch2) pkg-config --exists catch2 || pkg-config --exists catch2-with-main ;;
    nlohmann-json3-dev) pkg-config --exists nlohmann_json ;;
    libcli11-dev) pkg-config --exists CLI11 ;;
    libibverbs-dev) pkg-config --exists libibverbs ;;
    libhwloc-dev) pkg-config --exists 'hwloc >= 2.8' ;;
    meson | pkg-config | python3 | gcc | make | clang | clang-format-14 | clang-tidy | shellcheck)
      command -v "$1"
      ;;
    *) dpkg-query -W -f '${Status}' "$1" | grep -q 'ok installed' ;;
  esac >/dev/null 2>&1
}

# Of the named packages those of which nothing is there.
missing_packages() {
  local p
  for p in "$@"; do is_there "$p" || printf '%s ' "$p"; done
}

# Of the named packages those that nothing goes without.
indispensable() {
  local p
  for p in "$@"; do [[ " $dispensable " == *" $p "* ]] || printf '%s ' "$p"; done
}

# apt_get LOG ARGUMENT...: waits for another one that has the lock, for two minutes at most; apt's own
# waiting leaves out the lists.  Gives up soon where no mirror answers.
apt_get() {
  local log=$1 tries
  shift
  for tries in {1..24}; do
    quietly "apt-get $1" "$log" ${sudo:+$sudo} env DEBIAN_FRONTEND=noninteractive apt-get -q \
      -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
      -o Acquire::https::Timeout=20 "$@" && return 0
    grep -q 'Could not get lock' "$log" || return 1
    [ "$tries" = 24 ] || sleep 5
  done
  return 1
}

# ensure_packages required|optional PACKAGE...
# Installs what is missing when it may: root, or sudo without a password; asks nothing.
# Returns 1 when optional packages stay missing.  Required ones end the script, but for those that are
# dispensable.
ensure_packages() {
  local need=$1 missing needed sudo='' command log why
  shift
  missing=$(missing_packages "$@")
  [ -z "$missing" ] && return 0
  # shellcheck disable=SC2086  # the lists are lists
  needed=$(indispensable $missing)
  if ! command -v apt-get >/dev/null; then
    [ "$need" = optional ] && return 1
    [ -z "$needed" ] && { say "not there, going on without: ${missing% }"; return 0; }
    die "this is not a Debian or Ubuntu system: install a C++20 compiler, meson >= 1.0.1, ninja," \
      "pkg-config, python3, libibverbs and hwloc headers, CLI11, nlohmann-json and Catch2, then run" \
      "this again; what has these names there is missing: ${needed% }"
  fi
  [ "$(id -u)" = 0 ] || sudo='sudo -n'
  command="${sudo:+sudo }apt-get install -y --no-install-recommends ${missing% }"
  if [ "$install" = no ] || { [ -n "$sudo" ] && ! sudo -n true 2>/dev/null; }; then
    [ "$need" = optional ] && { say "not installed: ${missing% } (would be: $command)"; return 1; }
    [ -z "$needed" ] && { say "not installed, going on without: ${missing% }"; return 0; }
    die "these packages are missing: ${missing% }; install them and run this again: $command"
  fi
  say "installing ${missing% }"
  log=$(mktemp)
  # The lists may be good enough although not every mirror answers.
  apt_get "$log" update || true
  # shellcheck disable=SC2086  # the lists are lists
  if apt_get "$log" install -y --no-install-recommends $missing; then
    rm -f "$log"
    return 0
  fi
  why=$(grep -m 1 '^E: ' "$log" || tail -n 1 "$log")
  if [ "$need" = required ] && [ -n "$needed" ] && [ "$needed" != "$missing" ]; then
    # shellcheck disable=SC2086  # the lists are lists
    apt_get "$log" install -y --no-install-recommends $needed && needed=''
  fi
  rm -f "$log"
  [ "$need" = optional ] && { say "apt-get cannot install ${missing% } (${why#E: })"; return 1; }
  [ -z "$needed" ] && { say "apt-get cannot install ${missing% } (${why#E: }): going on without"; return 0; }
  die "apt-get cannot install ${needed% } (${why#E: }); try by hand: $command"
}

# apt-get update where that is allowed.
refresh_packages() {
  local sudo=''
  [ "$install" = yes ] && command -v apt-get >/dev/null || return 1
  [ "$(id -u)" = 0 ] || sudo='sudo -n'
  apt_get "$1" update
}

# Backtraces and sanitizers name functions and lines by this; all that a debugger wants takes a third of
# the time to compile what is optimized.
line_tables=-g1

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
