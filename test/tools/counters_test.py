"""twinpath-top and twinpath-exporter beside processes that are late, throttled or out of slots."""
import ctypes
import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest
import urllib.error
import urllib.request

SOURCE_ROOT = os.environ["SOURCE_ROOT"]
sys.path.insert(0, os.path.join(SOURCE_ROOT, "test", "faults"))
from documents import documented, paths_of  # noqa: E402
from net import HANDLE_BYTES, HOST, Net, log_to_stderr  # noqa: E402

PLUGIN = os.environ["PLUGIN"]
# Ranks, which get no settings of the outside, know neither.
TOP = os.environ.get("TWINPATH_TOP")
EXPORTER = os.environ.get("TWINPATH_EXPORTER")
INFO = os.environ.get("TWINPATH_INFO")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("TWINPATH_", "NCCL_"))}


# --- what a rank does: this file again, as `rank ROLE`, with handles over pipes ---------------------

class Communicator:
    """Makes connections of a communicator through the v11 table, and tells the v5 profiler of it,
    as NCCL 2.28 does.  The comms are the same in all versions."""

    NET = ["name", "init", "devices", "getProperties", "listen", "connect"]
    PROFILER = ["name", "init", "startEvent", "stopEvent", "recordEventState", "finalize"]

    def __init__(self, commid, name, rank, ranks):
        library = ctypes.CDLL(PLUGIN)
        self.net = self.table(library, "ncclNetPlugin_v11", self.NET)
        profiler = self.table(library, "ncclProfiler_v5", self.PROFILER)
        self.context, profiling, mask = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(-1)
        self.call(self.net.init, ctypes.byref(self.context), ctypes.c_uint64(commid), None,
                  log_to_stderr, None)
        self.call(profiler.init, ctypes.byref(profiling), ctypes.c_uint64(commid),
                  ctypes.byref(mask), name.encode() or None, ctypes.c_int(2), ctypes.c_int(ranks),
                  ctypes.c_int(rank), log_to_stderr)
        assert mask.value == 0

    @staticmethod
    def table(library, symbol, members):
        kind = type(symbol, (ctypes.Structure,), {"_fields_": [(m, ctypes.c_void_p) for m in members]})
        return kind.in_dll(library, symbol)

    @staticmethod
    def call(address, *args):
        rc = ctypes.CFUNCTYPE(ctypes.c_int)(address)(*args)
        assert rc == 0, rc

    def listen(self, handle, listener):
        self.call(self.net.listen, self.context, ctypes.c_int(0), handle, ctypes.byref(listener))

    def connect(self, handle, comm):
        device = ctypes.c_void_p()
        end = time.monotonic() + 30
        while not comm.value:
            assert time.monotonic() < end
            self.call(self.net.connect, self.context, ctypes.c_int(0), handle, ctypes.byref(comm),
                      ctypes.byref(device))
            time.sleep(0.001)


class Rank:
    """One end of one connection that posts and tests as NCCL's proxy thread does."""

    def __init__(self, role):
        self.net, self.role = Net(PLUGIN), role
        self.of = None
        self.comm, self.device_comm = ctypes.c_void_p(), ctypes.c_void_p()
        self.memory = ctypes.c_void_p()
        self.buffer = ctypes.create_string_buffer(1 << 20)

    def connect(self):
        net = self.net
        net.init()
        net.devices()
        if "COMMUNICATOR" in os.environ:
            self.of = Communicator(0x7b, os.environ["COMMUNICATOR"],
                                   3 if self.role == "sender" else 4, 8)
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        comm, device = ctypes.pointer(self.comm), ctypes.pointer(self.device_comm)
        if self.role == "receiver":
            listener = ctypes.c_void_p()
            if self.of:
                self.of.listen(handle, listener)
            else:
                net.call("listen", ctypes.c_int(0), handle, ctypes.pointer(listener))
            print(handle.raw.hex(), flush=True)
            assert net.until("accept", 30, self.comm, listener, comm, device)
        else:
            handle.raw = bytes.fromhex(sys.stdin.readline())
            if self.of:
                self.of.connect(handle, self.comm)
            else:
                assert net.until("connect", 30, self.comm, ctypes.c_int(0), handle, comm, device)
        net.call("regMr", self.comm, self.buffer, ctypes.c_size_t(len(self.buffer)),
                 ctypes.c_int(HOST), ctypes.pointer(self.memory))
        print("ready", flush=True)

    def start(self, bytes_, group):
        """A request, or None when there is no room for it."""
        request = ctypes.c_void_p()
        if self.role == "sender":
            self.net.call("isend", self.comm, self.buffer, ctypes.c_int(bytes_), ctypes.c_int(0),
                          self.memory, ctypes.pointer(request))
        else:
            data = (ctypes.c_void_p * group)(*[ctypes.addressof(self.buffer)] * group)
            sizes = (ctypes.c_int * group)(*[bytes_] * group)
            memory = (ctypes.c_void_p * group)(*[self.memory.value] * group)
            self.net.call("irecv", self.comm, ctypes.c_int(group), data, sizes,
                          (ctypes.c_int * group)(), memory, ctypes.pointer(request))
        return request if request.value else None

    def run(self, bytes_, window, group, late):
        """A full window of requests for ever; `late`: seconds before each of them."""
        done, sizes = ctypes.c_int(), (ctypes.c_int * 8)()
        requests = []
        while True:
            if len(requests) < window:
                if late:
                    time.sleep(late)
                request = self.start(bytes_, group)
                if request:
                    requests.append(request)
            if requests:
                self.net.call("test", requests[0], ctypes.pointer(done), sizes)
                if done.value:
                    requests.pop(0)


class Pair:
    """A sender and a receiver in processes of their own."""

    def __init__(self, bytes_=4096, window=4, group=1, sender_late=0, receiver_late=0, env=None,
                 sender_env=None):
        self.processes = {}
        base = {**CLEAN, "TWINPATH_FABRIC": "soft", "TWINPATH_TUNE": "off",
                "NCCL_SOCKET_IFNAME": "lo", **(env or {})}
        for role, late in ("receiver", receiver_late), ("sender", sender_late):
            self.processes[role] = subprocess.Popen(
                [sys.executable, __file__, "rank", role, str(bytes_), str(window),
                 str(group if role == "receiver" else 1), str(late)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**base, **((sender_env or {}) if role == "sender" else {})})
        receiver, sender = self.processes["receiver"], self.processes["sender"]
        sender.stdin.write(receiver.stdout.readline())
        sender.stdin.flush()
        for p in receiver, sender:
            assert p.stdout.readline() == "ready\n"

    def pid(self, role):
        return self.processes[role].pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes.values():
            p.kill()
            p.wait()
            p.stdin.close()
            p.stdout.close()


def top(*args, status=0):
    done = subprocess.run([TOP, *args], env=CLEAN, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def on_terminal(lines, columns, *args):
    """What twinpath-top shows on a terminal of that size, line by line."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.execve(TOP, [TOP, *args], CLEAN)
    text = b""
    while True:
        try:
            part = os.read(fd, 65536)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            break
        text += part
    os.close(fd)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, (status, text)
    return text.decode().splitlines()


def look(seconds=0.6, pid=None, sysfs="/usr"):
    only = ("--pid", str(pid)) if pid else ()
    seen = json.loads(top("--once", "--json", "--interval", str(seconds), "--sysfs", sysfs, *only))
    assert seen["schema"] == "twinpath-top/2", seen["schema"]
    unexplained = set(paths_of(seen)) - documented()["twinpath-top/2"]
    assert not unexplained, f"not in tools/JSON.md: {unexplained}"
    for row in seen["peers"]:
        assert row["waiting"] < 1.000001, row
    return seen


class Losing:
    """A sysfs in which the adapter's port goes on counting; its folder."""

    def __init__(self, hca):
        self.folder, self.over = tempfile.TemporaryDirectory(), threading.Event()
        self.file = pathlib.Path(self.folder.name, "class/infiniband", hca,
                                 "ports/1/hw_counters/packet_seq_err")
        self.file.parent.mkdir(parents=True)
        self.file.write_text("0\n")
        self.thread = threading.Thread(target=self.count)

    def count(self):
        n = 0
        while not self.over.wait(0.02):
            n += 1
            fresh = self.file.with_name("new")
            fresh.write_text(f"{n}\n")
            fresh.rename(self.file)

    def __enter__(self):
        self.thread.start()
        return self.folder.name

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.folder.cleanup()


def look_until(holds, seconds=0.6, pid=None, **more):
    """On a busy machine anybody may be late for a moment: the first look of many for which it
    holds, or the last."""
    for _ in range(20):
        seen = look(seconds, pid, **more)
        if holds(seen):
            break
    return seen


def row_of(seen, pid):
    return next(r for r in seen["peers"] if r["pid"] == pid)


class Culprits(unittest.TestCase):
    """The first line names who holds things up.  Other jobs of this user may run: --pid."""

    def test_a_late_rank(self):
        with Pair(receiver_late=0.2) as pair:
            late = rf"pid {pair.pid('receiver')} is late: .* clear-to-send"
            seen = look_until(lambda seen: re.search(late, seen["first_line"] or ""), pid=pair.pid("sender"))
            culprit = seen["culprit"]
            self.assertEqual(culprit["wait"], "peer_cts", seen)
            self.assertEqual(culprit["peer_pid"], pair.pid("receiver"))
            self.assertGreater(culprit["share"], 0.5)
            self.assertRegex(seen["first_line"], late)
            for _ in range(20):  # as look_until(), of the table
                first = top("--once", "--interval", "0.5", "--pid",
                            str(pair.pid("sender"))).splitlines()[0]
                if re.search(late, first):
                    break
            self.assertRegex(first, late)

    def test_a_rank_that_sends_late(self):
        with Pair(sender_late=0.2) as pair:
            culprit = look_until(lambda seen: (seen["culprit"] or {}).get("wait") == "peer_data",
                                 pid=pair.pid("receiver"))["culprit"]
            self.assertEqual(culprit["wait"], "peer_data")
            self.assertEqual(culprit["peer_pid"], pair.pid("sender"))

    def test_a_throttled_rail(self):
        slow = {"TWINPATH_SOFT_FAULTS": "delay_us=30000", "TWINPATH_SOFT_HCAS": "railb"}
        with Pair(8192, env={"TWINPATH_SOFT_HCAS": "raila"}, sender_env=slow) as pair, \
                Pair(8192, env={"TWINPATH_SOFT_HCAS": "railc"}) as other:
            sender = pair.pid("sender")
            seen = look_until(lambda seen: (seen["culprit"] or {}).get("wait") == "network", 1.5)
            ours = {p.pid(r) for p in (pair, other) for r in ("sender", "receiver")}
            self.assertLessEqual(ours, {p["pid"] for p in seen["processes"]})
            culprit = seen["culprit"]
            self.assertEqual((culprit["wait"], culprit["pid"], culprit["device"]),
                             ("network", sender, "railb"), culprit)
            self.assertIn("rail railb is slow:", culprit["text"])
            row = row_of(seen, sender)
            self.assertGreater(row["rails"][0]["p50_ns"], 16e6)
            self.assertLess(row_of(seen, other.pid("sender"))["rails"][0]["p50_ns"], 16e6)

    def test_a_lossy_link(self):
        """The adapter is slow as one that sends again, and what the kernel would count of that is
        written here; test/vm has a link that loses packets."""
        slow = {"TWINPATH_SOFT_FAULTS": "delay_us=30000", "TWINPATH_SOFT_HCAS": "railb"}
        with Pair(8192, env={"TWINPATH_SOFT_HCAS": "raila"}, sender_env=slow) as pair:
            for hca, lost in ("railb", True), ("raila", False):
                with self.subTest(hca), Losing(hca) as sysfs:
                    sender = pair.pid("sender")
                    seen = look_until(lambda seen: (seen["culprit"] or {}).get("wait") == "network"
                                      and seen["culprit"]["packets_lost"] == lost,
                                      1, sender, sysfs=sysfs)
                    self.assertEqual(seen["culprit"]["packets_lost"], lost, seen["culprit"])
                    said = (r"^rail railb loses packets: .* its port sent again: packet_seq_err \d+$"
                            if lost else r"^rail railb is ")
                    for _ in range(20):  # as look_until(), of the table
                        first = top("--once", "--interval", "1", "--pid", str(sender), "--sysfs",
                                    sysfs).splitlines()
                        if re.search(said, first[0]):
                            break
                    self.assertRegex(first[0], said)
                    # Of a port that is nobody's here no line is shown.
                    self.assertEqual([line for line in first if "counted in" in line] != [], lost)
                    grown = [n for n in seen["nics"] if n["name"] == "packet_seq_err"]
                    self.assertEqual([(n["hca"], n["port"], n["kind"]) for n in grown],
                                     [(hca, "1", "retransmission")])
                    self.assertGreater(grown[0]["grown"], 3)

    def test_too_few_slots(self):
        # Receives of 8 fill the sender's 256 requests, and a slow network keeps them busy.
        slow = {"TWINPATH_SOFT_FAULTS": "delay_us=300000"}
        with Pair(bytes_=1024, window=1000, group=8, sender_env=slow) as pair:
            time.sleep(0.5)
            culprit = look_until(lambda seen: (seen["culprit"] or {}).get("wait") == "slots", 1,
                                 pair.pid("sender"))["culprit"]
            self.assertEqual(culprit["wait"], "slots", culprit)
            self.assertIn("too few slots", culprit["text"])

    def test_nobody_is_named_when_nothing_waits(self):
        with Pair(sender_late=0.3, receiver_late=0.001) as pair:
            seen = look_until(lambda seen: seen["culprit"] is None, pid=pair.pid("sender"))
            self.assertIsNone(seen["culprit"], seen["culprit"])


class Processes(unittest.TestCase):
    def test_counts_grow_and_a_killed_process_is_gone(self):
        with Pair() as pair:
            sender = pair.pid("sender")
            look_until(lambda seen: any(r["messages"] > 0 for r in seen["peers"]), 0.1, sender)
            first = row_of(look(0.2, sender), sender)
            second = row_of(look(0.2, sender), sender)
            self.assertGreater(second["messages"], first["messages"])
            self.assertEqual(second["path"], "HOST")
            # A reader takes one number after the other: they fit together when nothing moves.
            pair.processes["receiver"].send_signal(signal.SIGSTOP)
            counts = []

            def quiet(seen):
                counts.append(row_of(seen, sender)["messages"])
                return counts[-2:-1] == counts[-1:]

            last = row_of(look_until(quiet, 0.1, sender), sender)
            self.assertEqual(last["bytes"], 4096 * last["messages"])
            pair.processes["sender"].send_signal(signal.SIGKILL)
            pair.processes["sender"].wait()
            top("--once", "--pid", str(pair.pid("sender")), "--interval", "0", status=1)

    def test_a_small_terminal_shows_the_first_line(self):
        with Pair() as pair:
            sender = pair.pid("sender")
            look_until(lambda seen: any(r["messages"] > 0 for r in seen["peers"]), 0.1, sender)
            for lines, columns in (24, 80), (10, 60):
                shown = on_terminal(lines, columns, "--once", "--interval", "0.2", "--pid", str(sender))
                with self.subTest(lines=lines, columns=columns):
                    self.assertLess(len(shown), lines, shown)
                    self.assertLessEqual(max(map(len, shown)), columns, shown)
                    self.assertTrue(any("mostly for" in line for line in shown), shown)
            wide = on_terminal(24, 400, "--once", "--interval", "0.2", "--pid", str(sender))
            self.assertIn("failovers", "\n".join(wide))

    def test_info_tells_what_was_counted(self):
        with Pair(receiver_late=0.02) as pair, Losing("mlx5_9") as sysfs:
            sender = pair.pid("sender")
            look_until(lambda seen: any(r["messages"] > 0 for r in seen["peers"]), 0.1, sender)
            run = [INFO, "--counters", "--sysfs", sysfs]
            text = subprocess.run(run, env=CLEAN, capture_output=True, text=True, timeout=60,
                                  check=True).stdout
            self.assertRegex(text, rf"(?m)^\S+ pid {sender} python3?\S*, plugin \d")
            row = re.search(rf"(?m)^  to +\S+ pid {pair.pid('receiver')} .*$", text)[0].split()
            # to HOST pid N as-rank rail conns bytes messages staged peer_cts ...
            self.assertEqual(int(row[7]), 4096 * int(row[8]), row)
            self.assertGreater(float(row[10]), 0, row)
            self.assertRegex(text, r"(?m)^  mlx5_9 port 1 packet_seq_err \d+$")
            seen = json.loads(subprocess.run([*run, "--json"], env=CLEAN, capture_output=True,
                                             text=True, timeout=60, check=True).stdout)
            self.assertEqual((seen["tool"], seen["schema"]), ("twinpath-info", "twinpath-top/2"))
            self.assertFalse(set(paths_of(seen)) - documented()["twinpath-top/2"])
            self.assertGreaterEqual(row_of(seen, sender)["messages"], int(row[8]))

    def test_a_communicator_by_its_name(self):
        with Pair(env={"COMMUNICATOR": 'tp "α"'}, receiver_late=0.05) as pair:
            sender, receiver = pair.pid("sender"), pair.pid("receiver")
            seen = look(pid=sender)
            row = row_of(seen, sender)
            self.assertEqual((row["comm_name"], row["rank"], row["ranks"]), ('tp "??"', 3, 8))
            self.assertEqual(seen["processes"][0]["communicators"],
                             [{"id": "0x7b", "comm_name": 'tp "??"', "rank": 3, "ranks": 8,
                               "nodes": 2, "ended": False}])
            self.assertEqual(seen["processes"][0]["unnamed_communicators"], 0)
            self.assertEqual(row_of(look(pid=receiver), receiver)["rank"], 4)
            shown = top("--once", "--interval", "0", "--pid", str(sender))
            self.assertIn("(rank 3 of 8 in tp", shown)
            self.assertRegex(shown, r'as rank[^$]*tp "\?\?" 3/8')
            series = parse(subprocess.run([EXPORTER, "--once"], env=CLEAN, capture_output=True,
                                          text=True, timeout=60, check=True).stdout)
            self.assertEqual(sum_of(series, "twinpath_connections", f'pid="{sender}"',
                                    'rank="3",comm_name="tp \\"??\\""'), 1)
        with Pair(env={"COMMUNICATOR": ""}) as pair:
            row = row_of(look(pid=pair.pid("sender")), pair.pid("sender"))
            self.assertEqual((row["comm_name"], row["rank"], row["ranks"]), (None, 3, 8))
        with Pair() as pair:
            row = row_of(look(pid=pair.pid("sender")), pair.pid("sender"))
            self.assertEqual((row["comm_name"], row["rank"], row["ranks"]), (None, None, None))
            self.assertNotIn("as rank", top("--once", "--interval", "0", "--pid",
                                            str(pair.pid("sender"))))

    @unittest.skipUnless(os.getuid() == 0, "only root can become another user")
    def test_another_user_sees_nothing(self):
        with Pair() as pair, tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            mine = shutil.copy(TOP, folder)
            args = [mine, "--once", "--interval", "0", "--pid", str(pair.pid("sender"))]
            self.assertEqual(subprocess.run(args, env=CLEAN, stdout=subprocess.DEVNULL,
                                            timeout=60).returncode, 0)
            done = subprocess.run(args, env=CLEAN, capture_output=True, text=True, timeout=60,
                                  user=65534, group=65534, extra_groups=[])
            self.assertEqual((done.returncode, done.stderr), (1, ""))
            self.assertIn("no process to look at", done.stdout)

    def test_without_counters_there_is_nothing_to_see(self):
        with Pair(env={"TWINPATH_COUNTERS": "0"}) as pair:
            self.assertIn("no process to look at",
                          top("--once", "--pid", str(pair.pid("sender")), status=1))

    def test_what_a_lost_connection_leaves_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            with Pair(env={"COMMUNICATOR": "tp"},
                      sender_env={"TWINPATH_METRICS_DIR": folder, "STAYS": "1"}) as pair:
                sender = pair.pid("sender")
                look_until(lambda seen: any(r["messages"] > 0 for r in seen["peers"]), 0.1, sender)
                pair.processes["receiver"].kill()
                # A thread writes it, which a process that ends at once would not wait for.
                files, end = [], time.monotonic() + 60
                while not files and time.monotonic() < end:
                    time.sleep(0.05)
                    files = list(pathlib.Path(folder).glob("twinpath-*.counters"))
                self.assertEqual([f.name.rsplit("-")[-1] for f in files],
                                 [f"{pair.pid('sender')}.counters"])
                seen = json.loads(top("--post-mortem", str(files[0]), "--json"))
                self.assertEqual(seen["peers"][0]["lost"], 1)
                self.assertEqual(seen["peers"][0]["comm_name"], "tp")
                self.assertGreater(seen["peers"][0]["messages"], 0)
            spoilt = pathlib.Path(folder, "spoilt")
            spoilt.write_bytes(b"x" * 40000)
            top("--post-mortem", str(spoilt), status=1)

    def test_wrong_use(self):
        top("--interval", "0", status=2)
        top("--pid", "-1", status=2)
        top("--once", "--pid", "1", "--interval", "0", "--frobnicate", status=2)


# --- the exporter ----------------------------------------------------------------------------------

SERIES = re.compile(r'^([a-z_]+)(\{[^{}]*\})? (\S+)$')


def parse(text):
    """{(name, labels)}: value; fails where Prometheus would."""
    out, family, done = {}, None, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family = line.split()[2]
            assert family not in done, f"{family} in two places"
            done.add(family)
        elif not line.startswith("#"):
            name, labels, value = SERIES.match(line).groups()
            assert name == family or re.fullmatch(family + "_(bucket|sum|count)", name), line
            assert (name, labels) not in out, f"twice: {line}"
            out[name, labels] = float(value)
    return out


def sum_of(series, name, *having):
    return sum(v for (n, labels), v in series.items()
               if n == name and all(h in (labels or "") for h in having))


class Exporter(unittest.TestCase):
    def setUp(self):
        self.server = subprocess.Popen([EXPORTER, "--listen", "127.0.0.1:0"], env=CLEAN, text=True,
                                       stdout=subprocess.PIPE)
        self.url = self.server.stdout.readline().strip()

    def tearDown(self):
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()

    def scrape(self):
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            self.assertIn("version=0.0.4", answer.headers["Content-Type"])
            return parse(answer.read().decode())

    def test_a_scrape(self):
        with Pair(receiver_late=0.05) as pair:
            mine = f'pid="{pair.pid("sender")}"'
            time.sleep(0.5)
            first = self.scrape()
            time.sleep(0.5)
            second = self.scrape()
            for name in "twinpath_messages_total", "twinpath_bytes_total":
                self.assertGreater(sum_of(second, name, mine), sum_of(first, name, mine))
            self.assertGreater(
                sum_of(second, "twinpath_wait_seconds_total", mine, 'for="peer_cts"'), 0.3)
            self.assertGreaterEqual(
                sum_of(second, "twinpath_message_seconds_count", mine), 1)
            self.assertEqual(sum_of(second, "twinpath_rail_up", mine, 'rail="soft0"'), 1)
            self.assertEqual(sum_of(second, "twinpath_path_info", mine, 'path="HOST"'), 1)
            pair.processes["sender"].kill()
            pair.processes["sender"].wait()
            self.assertFalse([k for k in self.scrape() if mine in (k[1] or "")])

    def test_what_is_no_scrape(self):
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(self.url.replace("/metrics", "/etc"), timeout=30)
        self.assertEqual(refused.exception.code, 404)
        refused.exception.close()
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(self.url, data=b"x", timeout=30)
        self.assertEqual(refused.exception.code, 405)
        refused.exception.close()
        self.scrape()

    def test_a_file_for_node_exporter(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([EXPORTER, "--textfile", folder, "--once"], env=CLEAN, timeout=60)
            self.assertEqual(done.returncode, 0)
            self.assertEqual([f.name for f in pathlib.Path(folder).iterdir()], ["twinpath.prom"])
            self.assertIn(("twinpath_processes", None),
                          parse(pathlib.Path(folder, "twinpath.prom").read_text()))


def rank():
    role, bytes_, window, group, late = sys.argv[2:]
    end = Rank(role)
    end.connect()
    try:
        end.run(int(bytes_), int(window), int(group), float(late))
    finally:
        if "STAYS" in os.environ:  # as a program does that looks into its error
            sys.stdin.read()


if __name__ == "__main__":
    rank() if sys.argv[1:2] == ["rank"] else unittest.main()
