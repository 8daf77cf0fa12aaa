# shellcheck shell=bash
# Completion of Twinpath's tools in bash.  What there is to choose from the tool itself says (--help).

_twinpath() {
  local tool=$1 word=$2 before=$3 help values
  COMPREPLY=()
  help=$("$tool" --help 2>/dev/null </dev/null) || return
  # --gpu-memory {vmm,malloc}
  values=$(sed -n "s/^ *\(-[^ ]*,\)*$before {\([^}]*\)}.*/\2/p" <<<"$help")
  if [[ $before == -* && -n $values ]]; then
    values=${values//,/ }
  elif [[ $word == -* ]]; then
    values=$(grep -oE '^ *(-[^ ]*)' <<<"$help" | tr ', ' '\n' | sed 's/{.*//' | grep '^-')
  elif [[ $tool == *softhca && $before != --* ]]; then
    mapfile -t COMPREPLY < <(compgen -c -- "$word")
    return
  else
    values=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p' <<<"$help")
  fi
  mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
}
complete -o default -F _twinpath twinpath-net-perf twinpath-coll-perf twinpath-gda-perf twinpath-softhca \
  net_perf coll_perf gda_perf softhca twinpath-info twinpath-topo twinpath-top twinpath-exporter
