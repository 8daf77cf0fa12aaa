# shellcheck shell=bash disable=SC2034,SC2154  # names are those of the script that reads this
# Part of tools/test.sh: which stages a run has, how far it is, and its last lines however it ends.
# Sourced; uses say and elapsed of tools/lib/common.sh.  The caller sets root.

# In their order.  A change needs those that are not long; --all runs them all.  The others are for
# asking only.
stages=(plain demo softhca vm format scripts asan tsan fuzz)
long_stages=(demo softhca vm asan tsan fuzz)
on_request=(tidy arm64 variants)
# Of the plain build; stage softhca has what would be the suite of this name.
meson_suites=(unit soft fabric topology abi gda tools package lint faults patient gpu perf)

chosen=()
# choose NAME[,NAME...]: only these.
choose() {
  local name
  local known=" ${stages[*]} ${on_request[*]} ${meson_suites[*]} "
  for name in ${1//,/ }; do
    if [[ $known != *" $name "* ]]; then
      echo "test.sh: there is no suite $name.  Suites of the plain build: ${meson_suites[*]};" \
        "stages: ${stages[*]} ${on_request[*]}" >&2
      exit 2
    fi
    chosen+=("$name")
  done
}
is_chosen() {
  local name
  for name in ${chosen[@]+"${chosen[@]}"}; do [ "$name" != "$1" ] || return 0; done
  return 1
}
# The chosen suites of the plain build; none where all of it was asked for.
chosen_meson_suites() {
  local name
  is_chosen plain || for name in "${meson_suites[@]}"; do
    if is_chosen "$name"; then echo "$name"; fi
  done
}

# plan ALL REPORT: sets planned, and says what there is beyond what a change needs.
planned=()
plan() {
  local stage left=()
  for stage in "${stages[@]}" "${on_request[@]}"; do
    if [ ${#chosen[@]} -gt 0 ]; then
      is_chosen "$stage" || { [ "$stage" = plain ] && [ -n "$(chosen_meson_suites)" ]; } || continue
    elif [[ " ${on_request[*]} " == *" $stage "* ]]; then
      continue
    elif [ "$1" = no ] && [[ " ${long_stages[*]} " == *" $stage "* ]]; then
      # The report is made of what these two find.
      [ -n "$2" ] && [[ " softhca vm " == *" $stage "* ]] || { left+=("$stage") && continue; }
    fi
    planned+=("$stage")
  done
  if [ ${#left[@]} -gt 0 ]; then
    say "stages: ${planned[*]}; left out, tools/test.sh --all runs them: ${left[*]}"
  fi
}
wanted() { [[ " ${planned[*]} " == *" $1 "* ]]; }

# What stages took when they last ran as a whole, "NAME SECONDS" a line.
stage_times=$root/build-test/stage-times
stage='' stage_began=0
# time_left STAGE: ", about N min left" from this stage on, where all of them have run before.
time_left() {
  local name seconds sum=0 counting=no
  for name in "${planned[@]}"; do
    [ "$name" != "$1" ] || counting=yes
    [ $counting = yes ] || continue
    seconds=$(awk -v name="$name" '$1 == name {print $2}' "$stage_times" 2>/dev/null)
    [ -n "$seconds" ] || return 0
    sum=$((sum + seconds))
  done
  echo ", about $(((sum + 59) / 60)) min left, as last time"
}
end_stage() {
  [ -n "$stage" ] || return 0
  if [ "$stage" != plain ] || [ -z "$(chosen_meson_suites)" ]; then
    mkdir -p "${stage_times%/*}"
    {
      [ ! -f "$stage_times" ] || awk -v name="$stage" '$1 != name' "$stage_times"
      echo "$stage $((SECONDS - stage_began))"
    } >"$stage_times.new" && mv "$stage_times.new" "$stage_times"
  fi
  stage=''
}
# begin STAGE: false where it is not planned.
begin() {
  end_stage
  wanted "$1" || return 1
  local i=0
  while [ "${planned[i]}" != "$1" ]; do i=$((i + 1)); done
  stage=$1 stage_began=$SECONDS
  say "stage $((i + 1)) of ${#planned[@]}: $1$(time_left "$1")"
}

# Counts what is no Meson test: add PASSED FAILED [SKIPPED]
totals=$(mktemp)
echo '0 0 0' >"$totals"
add() {
  local p f s
  read -r p f s <"$totals"
  echo "$((p + $1)) $((f + $2)) $((s + ${3:-0}))" >"$totals"
}
# What failed and the end of what it said: told again at the end, which a log that was cut still has.
failures=$(mktemp)
# What failed beside others and passed alone, likewise.
unsteady=$(mktemp)
# fail WHAT [FILE]: one failure; FILE is what it said.
fail() {
  say "FAILED: $1"
  echo "$1" >>"$failures"
  if [ -n "${2:-}" ]; then
    tail -n 40 "$2"
    tail -n 12 "$2" | sed 's/^/    /' >>"$failures"
  fi
  add 0 1
}
not_run=()
# leave_out WHAT WHY
leave_out() {
  not_run+=("$1: $2")
  say "not run: $1: $2"
}
# The last lines, and the exit status.
finish() {
  local passed failed skipped
  read -r passed failed skipped <"$totals"
  echo
  if [ ${#not_run[@]} -gt 0 ]; then
    echo 'Not run on this machine:'
    printf '  %s\n' "${not_run[@]}"
  fi
  echo "Took $(elapsed) (minutes:seconds); $skipped test cases skipped; the reasons are above."
  if [ -s "$unsteady" ]; then
    echo 'Failed beside other tests, and passed when run once more, alone; what the first run said:'
    sed 's/^/  /' "$unsteady"
  fi
  if [ -s "$failures" ]; then
    echo 'Failed:'
    sed 's/^/  /' "$failures"
  fi
  rm -f "$totals" "$failures" "$unsteady"
  [ $((passed + failed)) -gt 0 ] || failed=1 # a run that shows nothing is no success
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

# A run that was interrupted is no success: that counts as a failure.
interrupted() {
  trap '' INT TERM HUP
  [ ! -t 1 ] || printf '\r\033[K'
  fail "interrupted by SIG$2 in stage ${stage:-none}; what had ended counts"
  stop_jobs 2>/dev/null
  # Meson writes down each test as it ends.
  [ -z "$counting" ] || count_suites
  finish
  exit $((128 + $1))
}
trap 'interrupted 2 INT' INT
trap 'interrupted 15 TERM' TERM
trap 'interrupted 1 HUP' HUP

# run_suites LABEL FOLDER [MESON TEST ARGUMENT...]: a few that fail are run once more, alone.  That
# tells a defect from a test that other tests' load broke, which is told, too, but is no failure.
counting='' # label and folder of the run that is to be counted
run_suites() {
  local label=$1 folder=$2 again=()
  shift 2
  rm -f "$folder"/meson-logs/testlog-{all,first}.json
  counting="$label $folder"
  # shellcheck disable=SC2086,SC2154  # an empty wrapper is no word; the caller sets it
  quietly "$label: testing" "$folder/test.log" \
    $wrapper meson test -C "$folder" --no-rebuild --setup all --num-processes "$test_processes" "$@"
  mapfile -t again < <(python3 tools/lib/count_tests.py --worth-another-run "$folder" 2>/dev/null)
  if [ -n "${again[*]}" ]; then
    mv "$folder"/meson-logs/testlog-{all,first}.json
    # shellcheck disable=SC2086
    quietly "$label: once more, alone: ${again[*]}" "$folder/again.log" \
      $wrapper meson test -C "$folder" --no-rebuild --setup all --num-processes 1 "$@" "${again[@]}"
  fi
  count_suites
}
count_suites() {
  local label folder
  read -r label folder <<<"$counting"
  counting=''
  # The second run may have been interrupted before it wrote anything.
  [ -s "$folder/meson-logs/testlog-all.json" ] ||
    mv "$folder"/meson-logs/testlog-{first,all}.json 2>/dev/null || true
  if [ -s "$folder/meson-logs/testlog-all.json" ]; then
    python3 tools/lib/count_tests.py --totals "$totals" --failures "$failures" --unsteady "$unsteady" \
      "$label" "$folder"
  else
    fail "$label: meson test ran nothing" "$folder/test.log"
  fi
}
# check NAME COMMAND...: one test that is a command.
check() {
  local name=$1 log status
  log=$(mktemp)
  shift
  set -m
  "$@" >"$log" 2>&1 </dev/null &
  set +m
  wait $!
  status=$?
  if [ $status = 0 ]; then
    say "ok: $name"
    add 1 0
  else
    fail "$name" "$log"
  fi
  rm -f "$log"
}
