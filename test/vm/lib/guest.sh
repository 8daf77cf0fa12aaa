# shellcheck shell=dash disable=SC2154  # rxe-run puts the settings in front
# Inside the VM, by sh: sets up the links, runs the command, hands back its status, powers off.
# rxe-run puts the settings in front.  Processes are expensive in here (an exec costs some 50 ms),
# hence one `ip` and one `rdma` for everything.
for port in /sys/class/virtio-ports/*; do
  read -r name <"$port/name"
  eval "port_$name=/dev/${port##*/}"
done
# A port can be open only once (EBUSY); behind fifos /dev/stdout can be opened again.
mkfifo /run/out /run/err
cat /run/out >"$port_out" &
out_writer=$!
cat /run/err >"$port_err" &
err_writer=$!
exec >/run/out 2>/run/err </dev/null
case $RXE_TOPO in hosts | ring) echo "vm-$RXE_HOST" ;; *) echo rxe-vm ;; esac >/proc/sys/kernel/hostname
[ -d "/lib/modules/$release" ] || ln -s "$kernel/lib/modules/$release" "/lib/modules/$release"
if [ -n "$share" ]; then
  [ -d "$share" ] || mkdir -p "$share"
  mount -t 9p -o rw,trans=virtio,version=9p2000.L,msize=512000,cache=none share "$share"
fi
ulimit -l unlimited

# Both ends of a veth pair live in the VM's one network namespace, because rxe of these kernels
# works in the first only.  The kernel would take a short cut through lo; so the local table is
# looked up for ARRIVING packets only, and the peer's address is routed out of the veth device:
# packets really cross the pair.
ip_commands='' rdma_commands='' table=10 failed=''
veth() { # NAME-A NAME-B ADDRESS-A ADDRESS-B
  mac_a=02:77:00:00:$table:0a mac_b=02:77:00:00:$table:0b
  ip_commands="$ip_commands
link add $1 address $mac_a mtu $mtu type veth peer name $2 address $mac_b mtu $mtu
addr add $3/24 dev $1 noprefixroute
addr add $4/24 dev $2 noprefixroute
link set $1 up
link set $2 up
rule add pref 100 iif $1 lookup local
rule add pref 100 iif $2 lookup local
rule add pref 200 oif $1 lookup 1$table
rule add pref 200 oif $2 lookup 2$table
"
  # `ip link set X down` drops these; rxe-link puts them back.
  cat >>/run/rxe-routes <<ROUTES
route replace $4/32 dev $1 src $3 table 1$table
route replace $3/32 dev $2 src $4 table 2$table
route replace $4/32 dev $1 src $3 table 300
route replace $3/32 dev $2 src $4 table 300
neigh replace $4 dev $1 lladdr $mac_b nud permanent
neigh replace $3 dev $2 lladdr $mac_a nud permanent
ROUTES
  table=$((table + 1))
}
dummy() { # NAME ADDRESS
  ip_commands="$ip_commands
link add $1 mtu $mtu type dummy
addr add $2/24 dev $1
link set $1 up"
}
wire() { # DEVICE NAME MTU ADDRESS|"master BRIDGE"
  ip_commands="$ip_commands
link set $1 name $2 mtu $3"
  case $4 in
    master*) ip_commands="$ip_commands
link set $2 $4" ;;
    *) ip_commands="$ip_commands
addr add $4/24 dev $2" ;;
  esac
  ip_commands="$ip_commands
link set $2 up"
}
rdma_link() { # NAME DEVICE [KIND]
  rdma_commands="$rdma_commands
link add $1 type ${3:-rxe} netdev $2"
}
: >/run/rxe-routes
case $RXE_TOPO in
  none) ;;
  mlx5) export RXE_ASK=$port_ask ;;
  dummy) dummy d0 10.77.0.1 && rdma_link rxe0 d0 ;;
  dummy2)
    dummy d0 10.77.0.1 && dummy d1 10.77.1.1
    rdma_link rxe0 d0 && rdma_link rxe1 d1
    ;;
  pair) veth a0 b0 10.77.0.1 10.77.0.2 && rdma_link rxe0 a0 && rdma_link rxe1 b0 ;;
  pair2)
    veth a0 b0 10.77.0.1 10.77.0.2 && veth a1 b1 10.77.1.1 10.77.1.2
    rdma_link rxe0 a0 && rdma_link rxe1 a1 && rdma_link rxe2 b0 && rdma_link rxe3 b1
    ;;
  hosts | mlx5-hosts)
    own=1 other=2
    [ "$RXE_HOST" = b ] && own=2 other=1
    export RXE_PEER=10.75.0.$other:7000 RXE_CONTROL=10.76.0.$own RXE_ASK=$port_ask
    for at in /sys/class/net/*; do
      read -r mac <"$at/address"
      case $mac in  # by the third byte: m0 c0 d0 d1
        02:75:00:*) wire "${at##*/}" m0 1500 10.75.0."$own" ;;
        02:75:01:*) wire "${at##*/}" c0 1500 10.76.0."$own" ;;
        02:75:02:*) wire "${at##*/}" d0 "$mtu" 10.77.0."$own" ;;
        02:75:03:*) wire "${at##*/}" d1 "$mtu" 10.77.1."$own" ;;
      esac
    done
    [ "$RXE_TOPO" = mlx5-hosts ] || { rdma_link rxe0 d0 && rdma_link rxe1 d1; }
    ;;
  ring)
    case $RXE_HOST in
      a) own=1 next=d0 before=d2 ;;
      b) own=2 next=d1 before=d0 ;;
      c) own=3 next=d2 before=d1 ;;
    esac
    export RXE_PEER='10.76.0.2:7000 10.76.0.3:7000' RXE_CONTROL=10.76.0.$own RXE_ASK=$port_ask
    # b and c meet on c0 in a's bridge.
    [ "$RXE_HOST" != a ] || ip_commands="
link add c0 type bridge
addr add 10.76.0.1/24 dev c0
link set c0 up"
    for at in /sys/class/net/*; do
      read -r mac <"$at/address"
      case $RXE_HOST$mac in  # by the third byte: c1 c2 d0 d1 d2
        a02:75:00:*) wire "${at##*/}" c1 1500 'master c0' ;;
        a02:75:01:*) wire "${at##*/}" c2 1500 'master c0' ;;
        ?02:75:0[01]:*) wire "${at##*/}" c0 1500 10.76.0."$own" ;;
        ?02:75:02:*) wire "${at##*/}" d0 "$mtu" 10.77.0."$own" ;;
        ?02:75:03:*) wire "${at##*/}" d1 "$mtu" 10.77.1."$own" ;;
        ?02:75:04:*) wire "${at##*/}" d2 "$mtu" 10.77.2."$own" ;;
      esac
    done
    rdma_link rxe0 "$next" && rdma_link rxe1 "$before"
    ;;
  siw) veth a0 b0 10.77.0.1 10.77.0.2 && rdma_link siw0 a0 siw && rdma_link siw1 b0 siw ;;
esac
case $RXE_TOPO in
  pair* | siw)
    for d in all default; do
      conf=/proc/sys/net/ipv4/conf/$d
      echo 0 >$conf/rp_filter
      echo 1 >$conf/accept_local
      echo 1 >$conf/arp_ignore
      echo 2 >$conf/arp_announce
    done
    ip_commands="rule add pref 1000 lookup local
rule add pref 900 lookup 300
rule del pref 0$ip_commands"
    ;;
esac
cat >/run/rxe-link <<'LINK'
#!/bin/sh
# rxe-link DEV up|down: a link flap that leaves routes and neighbours as they were
ip link set "$1" "$2" && [ "$2" = up ] && ip -force -batch /run/rxe-routes 2>/dev/null; :
LINK
chmod 755 /run/rxe-link
PATH=$PATH:/run
{
  echo "link set lo up
$ip_commands"
  cat /run/rxe-routes
} | ip -batch - || failed='ip could not set up the links'
[ -z "$rdma_commands" ] || echo "$rdma_commands" | rdma -b - || failed='rdma could not add the devices'
cd "$folder" || cd /
read -r up _ </proc/uptime
echo "$up" >>/run/rxe-times
if [ -z "$failed" ]; then
  bash "$work/command"
  status=$?
else
  echo "rxe-run: $failed" >&2
  status=126
fi
read -r up _ </proc/uptime
exec >/dev/null 2>&1  # then the writers end, unless a left-over child writes on
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  kill -0 $out_writer || kill -0 $err_writer || break
  sleep 0.1
done
[ -n "$share" ] && { cd /; sync; umount "$share"; }
echo "status=$status $(tr '\n' ' ' </run/rxe-times)$up" >"$port_status"
dmesg >"$port_log" 2>/dev/null
echo o >/proc/sysrq-trigger
sleep 5
echo b >/proc/sysrq-trigger
sleep 60
