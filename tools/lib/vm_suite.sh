# shellcheck shell=bash disable=SC2034,SC2154  # names are those of the script that reads this
# Part of tools/test.sh: the suite of test/vm.  Sourced; uses results (folder), say, add, fail, leave_out
# and tools/lib/common.sh.

vm_packages=(qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 ibverbs-utils perftest
  ibverbs-providers)

# in_vm_environment COMMAND...: with the settings of test/vm, which tools/test.sh exports to nobody
# else.
in_vm_environment() {
  (
    [ -n "${TWINPATH_VM_CACHE:-}" ] && export TWINPATH_VM_CACHE
    [ -n "${TWINPATH_VM_KERNEL:-}" ] && export TWINPATH_VM_KERNEL
    "$@"
  )
}

# Packages, the kernel and siw.  Returns 1, and has said why, when no virtual machine can run here.
prepare_vm() {
  local log=build-test/vm.log
  if [ "$(uname -m)" != x86_64 ]; then
    leave_out 'VM suite' 'made for x86_64 only'
    return 1
  fi
  if ! ensure_packages optional "${vm_packages[@]}"; then
    leave_out 'VM suite' "not installed: $(missing_packages "${vm_packages[@]}")"
    return 1
  fi
  if ! quietly 'kernel of the virtual machines' "$log" \
    in_vm_environment test/vm/rxe-run --prepare; then
    # Old package lists name packages that are gone from the mirror.
    refresh_packages "$log" || true
    if ! quietly 'kernel of the virtual machines, after apt-get update' "$log" \
      in_vm_environment test/vm/rxe-run --prepare; then
      leave_out 'VM suite' "$(tail -n 1 "$log")"
      return 1
    fi
  fi
  ensure_packages optional gcc make
  quietly 'siw for the virtual machines' "$log" in_vm_environment test/vm/siw-build ||
    say "no siw: $(tail -n 1 "$log")"
  quietly "the guest's module of softhca --pci" "$log" in_vm_environment test/vm/softhca-build || true
}

# vm_cases NAME COMMAND...: runs a program that tells its cases as test/vm/run does, and counts them.
vm_cases() {
  local name=$1 log status line p f s
  shift
  log=$(mktemp)
  # In the background and waited for: a signal to this script is acted upon at once.
  set -m
  {
    in_vm_environment "$@" 2>&1 </dev/null
    echo "status: $?"
  } | tee "$log" | sed -u '/^cases:/d; /^status:/d; s/^/  /' &
  set +m
  wait $!
  status=$(sed -n 's/^status: //p' "$log" | tail -n 1)
  line=$(grep '^cases:' "$log" | tail -n 1)
  if [ "$status" = 77 ]; then
    leave_out "$name" "$(grep -v -e '^cases:' -e '^status:' "$log" | tail -n 1)"
    [ -z "$line" ] || { read -r _ p _ f _ s _ <<<"$line" && add "$p" "$f" "$s"; }
  elif [ -z "$line" ]; then
    fail "$1 ended with status ${status:-unknown}" "$log"
  else
    read -r _ p _ f _ s _ <<<"$line"
    add "$p" "$f" "$s"
    # With what the program said, which is indented.
    awk '/^ /{if (on) print; next} {on = /^FAILED:/} on' "$log" >>"$failures"
    while IFS= read -r line; do leave_out "$name" "$line"; done < <(grep -F 'no time left' "$log")
  fi
  rm -f "$log"
}

# vm_suite TOPOLOGY...: the programs of test/vm there.
vm_suite() {
  vm_cases 'VM suite' test/vm/run --build build-test --results "$results" \
    --seconds "${TWINPATH_VM_SECONDS:-660}" "$@"
}
