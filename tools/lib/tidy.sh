# shellcheck shell=bash disable=SC2034,SC2154  # names are those of the script that reads this
# Part of tools/test.sh: clang-tidy.  Sourced; uses say, add, fail, leave_out, quietly, ensure_packages, root,
# jobs.
#
# All of the tree takes an hour on two processors, and older code has findings (mostly
# modernize-use-nodiscard in headers): so it judges the lines that changed, and only when asked.

tidy() {
  local tool base files folder=build-test log findings
  ensure_packages optional clang-tidy || true
  tool=$(compgen -c clang-tidy-diff | sort -V | tail -n 1)
  base=${TWINPATH_TIDY_BASE:-origin/main}
  if [ -z "$tool" ] || ! command -v clang-tidy >/dev/null; then
    leave_out 'clang-tidy' 'not installed (Debian, Ubuntu: clang-tidy)'
    return
  elif ! base=$(git merge-base "$base" HEAD 2>/dev/null); then
    leave_out 'clang-tidy' "there is no commit ${TWINPATH_TIDY_BASE:-origin/main}; set TWINPATH_TIDY_BASE"
    return
  fi
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- '*.cc' '*.h')
  if [ ${#files[@]} -eq 0 ]; then
    leave_out 'clang-tidy' "no source differs from $base"
    return
  fi
  log=$folder/tidy.log
  mkdir -p "$folder"
  # Commands that compile each file, and the one header that is generated.
  [ -f "$folder/build.ninja" ] || quietly 'configuring for clang-tidy' "$log" meson setup "$folder" "$root" \
    --buildtype=debugoptimized --unity=off -Dtests=enabled -Dtools=enabled
  quietly 'header with the commit' "$log" ninja -C "$folder" plugin/base/twinpath_commit.h
  git diff -U0 "$base" -- '*.cc' '*.h' >"$folder/tidy.diff"
  # shellcheck disable=SC2016  # expanded by the shell that has the file as input
  quietly "clang-tidy of what changed in ${#files[@]} files" "$log" sh -c \
    '"$1" -p1 -path "$2" -j "$3" -quiet -extra-arg=-Wno-unknown-warning-option <"$4"' \
    - "$tool" "$folder" "$jobs" "$folder/tidy.diff"
  findings=$(grep -cE ': (warning|error): ' "$log")
  if [ "$findings" = 0 ]; then
    say "ok: clang-tidy of what changed since $(git rev-parse --short "$base")"
    add 1 0
  else
    grep -E -A 3 ': (warning|error): ' "$log" | head -n 60 >"$folder/tidy-findings"
    fail "clang-tidy: $findings findings in what changed" "$folder/tidy-findings"
  fi
}
