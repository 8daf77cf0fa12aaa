# shellcheck shell=bash disable=SC2034,SC2154  # names are those of the script that reads this
# Part of tools/test.sh: builds under sanitizers, and the fuzz targets that one of them makes.  Sourced;
# uses say, add, fail, run_suites, build, stage, jobs, started.

# -O0 with g++: at -O2 g++ 12 warns falsely inside the standard library.  clang++,
# where it is, makes programs that run in half the time.  Many sources to a unit: a third of the time
# to compile; the build of tools/demo.sh shows that each compiles alone.
sanitized_suites=(unit soft fabric)
patient_sanitized_suites=(abi gda)
# sanitized LABEL FOLDER SANITIZER [MESON OPTION...]: builds, and runs these suites.  Of fuzzing alone
# only the targets are built.
sanitized() {
  local label=$1 folder=$2 sanitizer=$3 build_suites=("${sanitized_suites[@]}" "${patient_sanitized_suites[@]}")
  shift 3
  [ "$stage" != fuzz ] || build_suites=(none)
  # No --buildtype: where a folder is set up again, it would put the optimization back to 0.
  local optimization=0
  [ -n "$sanitizing_cxx" ] && local -x CXX=$sanitizing_cxx && optimization=1
  set -- -Ddebug=true -Doptimization=$optimization -Db_sanitize="$sanitizer" -Db_lundef=false \
    -Dtests=enabled -Dtools=disabled "$@"
  if build "$folder" "$jobs" "$label build" --unity=on --unity-size=16 "$@" || {
    # Two files of a unit may have chosen one name; whether there is more to it shows now.
    say "$label build: again, one source at a time"
    build "$folder" "$jobs" "$label build" --unity=off "$@"
  }; then
    add 1 0
    [ "$stage" != fuzz ] || return 0
    run_suites "$label" "$folder" "${sanitized_suites[@]/#/--suite=}" --timeout-multiplier 4
    test_processes=$jobs run_suites "$label" "$folder" \
      "${patient_sanitized_suites[@]/#/--suite=}" --timeout-multiplier 4
  else
    fail "$label build" "$folder/build.log"
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

fuzz_seconds=${TWINPATH_FUZZ_SECONDS:-48}
fuzz() {
  local target name log pids=() names=() i most=$fuzz_seconds
  if [ $SECONDS -gt $((started + 1500)) ]; then
    most=5
  elif [ $SECONDS -gt $((started + 1200)) ]; then
    most=20
  fi
  if [ "$fuzz_seconds" -gt "$most" ]; then
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
