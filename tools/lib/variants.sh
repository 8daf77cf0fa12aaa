# shellcheck shell=bash disable=SC2154  # names are those of the script that reads this
# Part of tools/test.sh: builds as others make them, of all that is installed; warnings are errors.
# Sourced; uses build, say, add, fail, leave_out, jobs.

# variant NAME COMPILER MESON-OPTION...
variant() {
  local name=$1 folder=build-variants/$1
  local -x CXX=$2
  shift 2
  if ! command -v "$CXX" >/dev/null; then
    leave_out "build $name" "no $CXX"
  elif build "$folder" "$jobs" "build $name" -Dwerror=true -Dtests=disabled -Dtools=enabled "$@"; then
    say "ok: build $name"
    add 1 0
  else
    fail "build $name" "$folder/build.log"
  fi
}

variants() {
  local options=()
  variant release g++ --buildtype=release
  variant clang-lto clang++ --buildtype=release -Db_lto=true
  variant plain g++ --buildtype=plain
  if command -v dpkg-buildflags >/dev/null; then
    local -x DEB_BUILD_MAINT_OPTIONS=hardening=+all
    options=("-Dcpp_args=$(dpkg-buildflags --get CXXFLAGS) $(dpkg-buildflags --get CPPFLAGS)"
      "-Dcpp_link_args=$(dpkg-buildflags --get LDFLAGS)")
    variant hardened g++ --buildtype=plain "${options[@]}"
  else
    leave_out 'build hardened' 'no dpkg-buildflags (Debian, Ubuntu: dpkg-dev)'
  fi
}
