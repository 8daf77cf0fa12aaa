# shellcheck shell=bash disable=SC2154  # names are those of the script that reads this
# Step 13 of tools/bringup.sh on one host: kernels whose queues the adapter itself reads, a GPU with itself
# through it.  Before each of ours NCCL's own GDAKI does the same.

# kernels STEP TITLE SETTINGS ARGUMENT...: of gda_perf; SETTINGS are words for env.
kernels() {
  local step=$1 title=$2 more=$3
  shift 3
  # shellcheck disable=SC2086
  ! controlled "$step" "control: NCCL's GDAKI, $title" ||
    attempt "$step" "control: NCCL's GDAKI, $title" 200 env $more NCCL_GIN_TYPE=3 CUDA_VISIBLE_DEVICES="${chosen:-$gpu}" \
    "$gda_perf" --plugin none -g 1 ${kernels[@]+"${kernels[@]}"} "$@"
  # shellcheck disable=SC2086
  attempt "$step" "$title" 200 env $more TWINPATH_MODE=gda CUDA_VISIBLE_DEVICES="${chosen:-$gpu}" \
    "$gda_perf" -g 1 ${kernels[@]+"${kernels[@]}"} "$@"
}
# A GPU on another socket than the adapter that step 3 found, by number; empty: there is none.
far_gpu() {
  python3 - "$out/twinpath-topo.json" <<'PY' 2>/dev/null
import json, sys
pairs = json.load(open(sys.argv[1])).get("pairs", [])
print(next((str(p["gpu"]) for p in pairs if p.get("class") == "SYS"), ""))
PY
}
active_mtu() { ibv_devinfo 2>/dev/null | awk '/active_mtu/ { print $2; exit }'; }

why=''
[ "${gpus:-0}" != 0 ] || why=$no_gpu
[ -n "$why" ] || [ -x "$gda_perf" ] || why='gda_perf is not built (nvcc)'
cpu='kernels: a CPU thread rings' bell_of_gpu='kernels: the GPU rings' second='kernels: a second context, the GPU rings'
counters='kernels: counters' strict='kernels: relaxed ordering off' relaxed='kernels: relaxed ordering on'
small='kernels: MTU 1500' far='kernels: across sockets'
if [ -n "$why" ]; then
  without 13a "$cpu" "$why"
  without 13b "$bell_of_gpu" "$why"
  without 13c "$second" "$why"
  without 13d "$counters" "$why"
  without 13e "$strict" "$why"
  without 13f "$relaxed" "$why"
  without 13g "$small" "$why"
  without 13h "$far" "$why"
else
  bell=NCCL_GIN_GDAKI_NIC_HANDLER
  kernels 13a "$cpu" $bell=1 --test pingpong,signal,putflush
  kernels 13b "$bell_of_gpu" $bell=2 --test pingpong,signal,putflush
  kernels 13c "$second" $bell=2 --contexts 2 --test rate
  kernels 13d "$counters" $bell=0 --test counter,counters
  kernels 13e "$strict" NCCL_IB_PCI_RELAXED_ORDERING=0 --test pingpong,bw
  kernels 13f "$relaxed" NCCL_IB_PCI_RELAXED_ORDERING=1 --test pingpong,bw
  case $(active_mtu) in
    256 | 512 | 1024) kernels 13g "$small" $bell=0 --test pingpong,bw ;;
    *) without 13g "$small" 'the port has another MTU: ip link set DEV mtu 1500, then --steps 13g' ;;
  esac
  chosen=$(far_gpu)
  if [ -n "$chosen" ]; then
    kernels 13h "$far (GPU $chosen)" $bell=0 --test pingpong,bw
  else
    without 13h "$far" 'no GPU on another socket than an adapter, or step 3 was not run'
  fi
fi
