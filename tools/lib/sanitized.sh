# shellcheck shell=bash disable=SC2034,SC2154  # names are those of the script that reads this
# Part of tools/test.sh: builds under sanitizers, and the fuzz targets that one of them makes.  Sourced;
# uses say, add, fail, run_suites, build, stage, jobs, started.

# -O0 with g++: at -O2 g++ 12 warns falsely inside the standard library.  clang++,
# where it is, makes programs that run in half the time.  Many sources to a unit: a third of the time to
# compile.
sanitized_suites=(unit soft fabric abi gda)
# sanitizer_build STAGE: sets up and compiles what stage asan, tsan or fuzz needs.
sanitizer_build() {
  local label=$1 folder=build-$1 sanitizer=thread optimization=0
  local build_suites=("${sanitized_suites[@]}") options=(-Dfuzz=disabled) cpp_args=$line_tables
  # With clang++ one build serves the fuzz targets too; of fuzzing alone only these are built.
  if [ "$1" != tsan ]; then
    label=asan+ubsan folder=build-asan sanitizer=address,undefined options=()
    # To see whether an object's memory can be read that check makes a pipe: in a test that has no
    # descriptor left it calls objects invalid which are not.
    cpp_args+=' -fno-sanitize=vptr'
    [ -z "$sanitizing_cxx" ] || options=(-Dfuzz=enabled) cpp_args+=' -fsanitize=fuzzer-no-link'
    [ "$1" != fuzz ] || build_suites=(none)
  fi
  # No --buildtype: where a folder is set up again, it would put the optimization back to 0.
  [ -n "$sanitizing_cxx" ] && local -x CXX=$sanitizing_cxx && optimization=1
  set -- -Ddebug=true -Doptimization=$optimization -Db_sanitize="$sanitizer" -Db_lundef=false -Dwerror=false \
    -Dtests=enabled -Dtools=disabled "-Dcpp_args=$cpp_args" ${options[@]+"${options[@]}"}
  build "$folder" "$jobs" "$label build" --unity=on --unity-size=64 "$@" || {
    # Two files of a unit may have chosen one name; whether there is more to it shows now.
    say "$label build: again, one source at a time"
    build "$folder" "$jobs" "$label build" --unity=off "$@"
  }
}
# early_builds STAGE...: begins these builds beside what is tested meanwhile, where a processor is
# idle: tests wait more than they compute.
early=''
early_builds() {
  local name
  for name in "$@"; do
    mkdir -p "build-$name"
    rm -f "build-$name/early-status"
  done
  set -m
  (
    # What is compiled has a group of its own.
    trap 'stop_jobs; exit 143' TERM
    chrt --idle --pid 0 "$BASHPID" || renice -n 19 -p "$BASHPID"
    for name in "$@"; do
      sanitizer_build "$name"
      echo $? >"build-$name/early-status"
    done
  ) >build-test/early.log 2>&1 </dev/null &
  set +m
  early=$!
}
# What an early build is at, until it has ended.
watch_early() {
  while [ ! -f "build-$1/early-status" ] && kill -0 "$early" 2>/dev/null; do
    tail -n 1 "build-$1/build.log" 2>/dev/null
    sleep 2
  done
}
# built STAGE: compiles it, or waits until the early build has.
built() {
  if [ -n "$early" ] && [ "$1" != fuzz ]; then
    quietly "$1 build, begun earlier" build-test/watch.log watch_early "$1"
    [ "$(cat "build-$1/early-status" 2>/dev/null)" = 0 ]
  else
    sanitizer_build "$1"
  fi
}
# sanitized STAGE LABEL: builds, and runs the suites.
sanitized() {
  local label=$2 folder=build-$1
  if ! built "$1"; then
    fail "$label build" "$folder/build.log"
    return
  fi
  add 1 0
  run_suites "$label" "$folder" "${sanitized_suites[@]/#/--suite=}" --timeout-multiplier 6
}
# links COMMAND...: whether this compiler makes a program.  Not in /dev/null: where that is no device
# any more, root would make a program of it.
links() {
  local dir status
  dir=$(mktemp -d)
  echo 'int main() { return 0; }' >"$dir/a.cc"
  "$@" "$dir/a.cc" -o "$dir/a" 2>/dev/null
  status=$?
  rm -rf "$dir"
  return $status
}
sanitizing_cxx=$(command -v clang++ || true)
if [ -n "$sanitizing_cxx" ] && ! links "$sanitizing_cxx" -fsanitize=address,undefined; then
  sanitizing_cxx='' # without its runtime libraries
fi
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

fuzz_seconds=${TWINPATH_FUZZ_SECONDS:-2}
fuzz() {
  local target name log pids=() names=() i
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
    fail 'no fuzz target was built'
  fi
  for i in "${!pids[@]}"; do
    name=${names[$i]}
    log=build-asan/$name.log
    if wait "${pids[$i]}"; then
      say "ok: fuzz $name: $(awk '/number_of_executed_units/ {print $2}' "$log") inputs, no finding"
      add 1 0
    else
      fail "fuzz $name, input kept in build-asan/findings/$name" "$log"
    fi
  done
}
