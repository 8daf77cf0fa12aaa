"""Bad settings, bad environments and strangers: each is refused or harmless, with a message that
says what, where and what to do."""
import os
import pathlib
import random
import re
import resource
import socket
import subprocess

from harness import Peer, Skip, case, connected, exchange, expect, moved_data, net_perf, shut, warnings

# kProtocolVersion of proxy/wire/handshake.h
HANDLE = pathlib.Path(__file__).resolve().parents[2] / "plugin/rdma/handle.h"
PROTOCOL = int(re.search(r"kProtocolVersion = (\d+);", HANDLE.read_text())[1])


@case
def a_full_dev_shm_does_not_matter(args):
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if probe.returncode != 0:
        raise Skip("needs the right to mount (unshare -m)")
    script = ('mount -t tmpfs -o size=64k tmpfs /dev/shm && '
              '{ dd if=/dev/zero of=/dev/shm/full bs=4k 2>/dev/null; exec "$@"; }')
    done = net_perf(args, "--test", "bw", "--sizes", "64k",
                    prefix=("unshare", "-m", "sh", "-c", script, "sh"))
    moved_data(done)


@case
def no_locked_memory_is_enough_for_the_soft_hca(args):
    done = net_perf(args, "--test", "latency", "--sizes", "8",
                    preexec=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)))
    moved_data(done)


def listening_port(pid):
    inodes = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(fd))
        except OSError:
            pass
    for name in ("tcp", "tcp6"):
        path = pathlib.Path(f"/proc/{pid}/net/{name}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            field = line.split()
            if field[3] == "0A" and f"socket:[{field[9]}]" in inodes:
                address, port = field[1].split(":")
                if len(address) == 8:
                    return socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)
    raise Skip("the listen socket is not an IPv4 one")


@case
def a_port_scanner_on_the_listen_socket_is_ignored(args):
    held = []

    def scan(listener):
        where = listening_port(listener.p.pid)
        seed = random.Random(5)
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(28), seed.randbytes(4096), b"TWPF",
                     b"WTPF" + seed.randbytes(60)):
            s = socket.create_connection(where, timeout=5)
            s.sendall(data)
            held.append(s)  # some stay open, as a slow peer would
        for s in held[::2]:
            s.close()

    listener, sender = connected(args, scan)
    exchange(listener, sender)
    shut(listener, sender)
    for s in held:
        s.close()


@case
def a_damaged_handle_is_refused(args):
    listener = Peer(args, "listen")
    handle = bytes.fromhex(listener.hear())
    for damaged in (bytes(128), handle[:20] + bytes(108), handle[:4] + b"\xff" + handle[5:],
                    handle[:40] + bytes(88), os.urandom(128)):
        sender = Peer(args, "connect", 5)
        sender.say(damaged.hex())
        answer = sender.hear()
        text = sender.end()
        expect(answer.startswith("error"), f"{damaged.hex()}: {answer}\n{text}")
        expect("connect" in warnings(text), f"{damaged.hex()}: no warning says why: {text}")
    listener.end()


@case
def a_port_that_is_down_gives_no_device_and_a_message_with_the_state(args):
    peer = Peer(args, "listen", TWINPATH_SOFT_HCAS="soft0,state=down")
    answer = peer.hear()
    text = peer.end()
    expect(answer == "error 0 devices", answer)
    for part in ("soft0:1", "its state is DOWN", "check cable"):
        expect(part in warnings(text), f"the warning lacks {part!r}: {text}")


@case
def a_port_that_is_down_leaves_the_others_usable(args):
    listener, sender = connected(args, TWINPATH_SOFT_HCAS="soft0,state=down,soft1")
    exchange(listener, sender)
    sender.say("close")
    sender.hear()
    text = sender.end()
    listener.end()
    expect("soft0:1 is left out: its state is DOWN" in text, text)


@case
def a_gid_index_out_of_range_is_refused_and_the_good_ones_are_named(args):
    for index in ("99", "2"):
        peer = Peer(args, "listen", NCCL_IB_GID_INDEX=index)
        answer = peer.hear()
        text = peer.end()
        expect(answer.startswith("error 4"), f"{answer}\n{text}")  # ncclInvalidArgument
        for part in ("soft0:1", f"NCCL_IB_GID_INDEX={index}", "indices in use: 0-1", "unset the variable"):
            expect(part in warnings(text), f"the warning lacks {part!r}: {text}")


def handle_parts(handle):
    """(nonce, (address, port)) of a listener's handle; see plugin/rdma/handle.h."""
    family, port = int.from_bytes(handle[24:26], "little"), int.from_bytes(handle[26:28], "little")
    if family != 4:
        raise Skip("the listener's address is not an IPv4 one")
    return handle[8:24], (socket.inet_ntoa(handle[28:32]), port)


@case
def a_connecting_peer_of_another_protocol_version_is_refused_with_both_versions(args):
    listener = Peer(args, "listen", 10)
    nonce, where = handle_parts(bytes.fromhex(listener.hear()))
    s = socket.create_connection(where, timeout=5)
    # A header is the same in all versions: magic, version, type (hello), length, nonce.
    s.sendall(b"WTPF" + (77).to_bytes(2, "little") + (1).to_bytes(2, "little") +
              (4).to_bytes(4, "little") + nonce + b"\1\2\3\4")
    listener.say("go")
    answer = listener.hear(15)
    told = s.recv(4096)  # the peer reads the same text
    s.close()
    text = listener.end()
    expect(answer.startswith("error"), f"{answer}\n{text}")
    for part in (f"protocol {PROTOCOL}", "its peer protocol 77", "install the same plugin version on all hosts"):
        expect(part in warnings(text), f"the warning lacks {part!r}: {text}")
        expect(part.encode() in told, f"the refusal lacks {part!r}: {told}")


@case
def a_listening_peer_of_another_protocol_version_is_named(args):
    listener, sender = Peer(args, "listen"), Peer(args, "connect", 5)
    handle = bytes.fromhex(listener.hear())
    sender.say((handle[:4] + (PROTOCOL + 1).to_bytes(2, "little") + handle[6:]).hex())
    answer = sender.hear()
    text = sender.end()
    listener.end()
    expect(answer.startswith("error"), f"{answer}\n{text}")
    expect(f"the listener speaks protocol {PROTOCOL + 1}, this side {PROTOCOL}: install the same plugin version" in warnings(text), text)


@case
def a_buffer_outside_its_registration_is_refused_and_the_connection_goes_on(args):
    for role in ("connect", "listen"):
        listener, sender = connected(args)
        bad = sender if role == "connect" else listener
        exchange(listener, sender)
        bad.say("outside")
        answer = bad.hear()
        exchange(listener, sender)
        text = bad.end()
        (listener if bad is sender else sender).end()
        expect(answer.startswith("error 4"), f"{answer}\n{text}")  # ncclInvalidArgument
        what = "isend" if role == "connect" else "irecv"
        expect(f"{what} of {(1 << 20) + 8192} bytes" in warnings(text), f"not named: {text}")


@case
def a_receive_smaller_than_the_send_gets_what_fits_and_the_sender_says_so(args):
    listener, sender = connected(args)
    for _ in range(2):
        listener.say("transfer 90 10 1000")
        sender.say("transfer 90 10")
        expect(listener.hear() == "posted", "receive was not posted")
        a, b = sender.hear(), listener.hear()
        expect((a, b) == ("ok", "ok"), f"send: {a}; receive: {b}")
    exchange(listener, sender)
    sender.say("close")
    sender.hear()
    text = sender.end()
    listener.end()
    told = [line for line in warnings(text).splitlines() if "was cut to it" in line]
    expect(len(told) == 1 and "1048576 bytes" in told[0] and "1000 bytes" in told[0], text)


@case
def more_receives_than_advertised_wait_and_fail_nothing(args):
    listener, sender = connected(args)
    listener.say("flood")
    answer = listener.hear()
    text = listener.end()
    sender.end()
    # 32 requests are NCCL's measure; one more is told to come again, not refused.
    expect(answer.startswith("ok ") and 32 <= int(answer[3:]) < 1000, f"{answer}\n{text}")
    expect(not warnings(text), text)


@case
def an_unknown_device_name_gives_no_device_and_a_message_with_the_names(args):
    peer = Peer(args, "listen", NCCL_IB_HCA="=nosuch0")
    answer = peer.hear()
    text = peer.end()
    expect(answer == "error 0 devices", answer)
    expect("nosuch0" in warnings(text) and "soft0" in warnings(text), text)


@case
def a_bad_option_value_is_named_and_the_default_kept(args):
    listener, sender = connected(args, TWINPATH_STRIPE_MIN="lots")
    exchange(listener, sender)
    sender.say("close")
    sender.hear()
    text = sender.end()
    listener.end()
    expect("TWINPATH_STRIPE_MIN" in warnings(text) and "lots" in warnings(text), text)


@case
def a_cuda_library_without_a_driver_does_not_matter_for_host_memory(args):
    if not args.fake_cuda:
        raise Skip("no stand-in for libcuda.so.1 was built")
    done = net_perf(args, "--test", "bw", "--sizes", "64k", LD_PRELOAD=args.fake_cuda)
    moved_data(done)


@case
def without_an_adapter_auto_gives_no_device_and_says_what_to_set(args):
    if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        raise Skip("there is an RDMA adapter here")
    peer = Peer(args, "listen", TWINPATH_FABRIC="auto")
    answer = peer.hear()
    text = peer.end()
    expect(answer.startswith("error"), answer)
    expect("TWINPATH_FABRIC=soft" in text, f"no hint at the soft HCA: {text}")
