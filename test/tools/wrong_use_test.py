"""What people do wrong with the tools: each is told what, by which option or variable, once, and the
exit status says it too."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from tool import INFO, NET_PERF, NO_JOB, PLUGIN, SOCKET_PLUGIN, clean_environment, net_perf, run

TOPO = os.environ["TWINPATH_TOPO"]
TOP, EXPORTER = os.environ["TWINPATH_TOP"], os.environ["TWINPATH_EXPORTER"]
COLL_PERF = os.environ.get("COLL_PERF")
PROGRAMS = [p for p in (NET_PERF, COLL_PERF, INFO, TOPO, TOP, EXPORTER) if p]
SLOW_MMAP = os.environ.get("SLOW_MMAP")
QUICK = ("--test", "latency", "--sizes", "8", "--iters", 20, "--repeats", 2)
SOFT = {**NO_JOB, "TWINPATH_FABRIC": "soft"}


class LostOutput(unittest.TestCase):
    """/dev/full takes nothing: no result, no success."""

    def fails(self, status, *words):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([*map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True,
                                  env={**clean_environment(), **SOFT}, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(os.path.basename(words[0]) + ": the output cannot be written", done.stderr)

    def test_info(self):
        for args in (["--json"], [], ["--options"], ["--markdown"]):
            self.fails(1, INFO, *args)

    def test_topo(self):
        for args in (["--json"], [], ["check"], ["tree", "--json"]):
            self.fails(3, TOPO, *args)

    def test_net_perf(self):
        for args in (["--json"], []):
            self.fails(1, NET_PERF, "--plugin", PLUGIN, "--timeout", 30, *QUICK, *args)

    def test_coll_perf(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        for args in (["--json"], []):
            self.fails(4, COLL_PERF, "--cpu", 2, "--plugin", PLUGIN, "-b", 8, "-e", 8, "-n", 1, "-w", 0,
                       *args)

    def test_help(self):
        self.fails(1, INFO, "--help")
        self.fails(3, TOPO, "--help")
        self.fails(1, NET_PERF, "--help")


# Program, what is said of which value, arguments.  Each is refused before anything runs.
JOB = ("--rank", "0/2", "--rendezvous")
REFUSED = [
    (NET_PERF, "--processes: '0' is not an even number from 2 to", "--processes", 0),
    (NET_PERF, "--processes: '-2' is not", "--processes", -2),
    (NET_PERF, "--processes: '3' is not an even number", "--processes", 3),
    (NET_PERF, "--processes: '99999999999999999999' is not", "--processes", "99999999999999999999"),
    (NET_PERF, "--threads: '0' is not", "--threads", 0),
    (NET_PERF, "--processes excludes --threads", "--threads", 2, "--processes", 2),
    (NET_PERF, "--warmup: '-1' is not", "--warmup", -1),
    (NET_PERF, "--iters: '0' is not", "--iters", 0),
    (NET_PERF, "--iters: '1.5' is not", "--iters", "1.5"),
    (NET_PERF, "--connections: '0' is not", "--connections", "1,0"),
    (NET_PERF, "--window: '' is not", "--window", ""),
    (NET_PERF, "--timeout: 'nan' is not a number from 0.1", "--timeout", "nan"),
    (NET_PERF, "--timeout: 'inf' is not", "--timeout", "inf"),
    (NET_PERF, "--abi 8k is not known", "--abi", "8k"),
    (NET_PERF, "--abi 13 is not known", "--abi", 13),
    (NET_PERF, "--plot: 'x.png' does not end in .svg, which is what is written", "--plot", "x.png"),
    (NET_PERF, "--rendezvous: '99999' is not a port: 1 to 65535", *JOB, "a:99999"),
    (NET_PERF, "--rendezvous: '0' is not a port", *JOB, "a:0"),
    (NET_PERF, "--rendezvous: '-5' is not a port", *JOB, "a:-5"),
    (NET_PERF, "--rendezvous: 'a' is not HOST:PORT", *JOB, "a"),
    (NET_PERF, "an IPv6 address stands in brackets", *JOB, "::1:29500"),
    (NET_PERF, "was not expected: --frobnicate", "--frobnicate"),
    (COLL_PERF, "--cpu: '1' is not a whole number from 2", "--cpu", 1),
    (COLL_PERF, "--timeout: 'nan' is not", "--cpu", 2, "--timeout", "nan"),
    (COLL_PERF, "--plot: 'x.pdf' does not end in .svg", "--cpu", 2, "--plot", "x.pdf"),
    (COLL_PERF, "--rendezvous: '65536' is not a port", "--cpu", 2, *JOB, "[::1]:65536"),
    (INFO, "--sysfs: '/nonexistent': No such file or directory", "--counters", "--sysfs",
     "/nonexistent"),
    (INFO, "--sysfs: '/etc/passwd' is not a folder", "--sysfs", "/etc/passwd"),
    (TOP, "--rows: '-1' is not a whole number from 0", "--once", "--rows", -1),
    (TOP, "--pid: '0' is not", "--once", "--pid", 0),
    (TOP, "--interval: 'nan' is not a number from 0 to 3600", "--interval", "nan"),
    (TOP, "--interval 0 needs --once", "--interval", 0),
    (TOP, "--sysfs: '/nonexistent': No such file", "--once", "--sysfs", "/nonexistent"),
    (EXPORTER, "--listen: '99999' is not a port: 0 to 65535", "--listen", "127.0.0.1:99999"),
    (EXPORTER, "--listen: ':99999' is not HOST:PORT", "--listen", ":99999"),
    (EXPORTER, "--listen: 'nonsense' is not HOST:PORT", "--listen", "nonsense"),
    (EXPORTER, "--every: 'nan' is not", "--textfile", "/tmp", "--every", "nan"),
    (EXPORTER, "--textfile: '/nonexistent': No such file", "--textfile", "/nonexistent", "--once"),
    (EXPORTER, "--sysfs: '/nonexistent': No such file", "--once", "--sysfs", "/nonexistent"),
    (TOPO, "--host 3: this node is one machine", "--host", 3),
    (TOPO, "--host: '-1' is not", "--host", -1),
    (TOPO, "--svg: 'x.png' does not end in .svg, which is what is written", "--svg", "x.png"),
    (TOPO, "--png: 'x.svg' does not end in .png", "--png", "x.svg"),
    (TOPO, "--nccl-xml: 'x.json' does not end in .xml", "--nccl-xml", "x.json"),
    (TOPO, "'x.tgz' does not end in .tar", "dump", "x.tgz"),
    (TOPO, "--placement: '/nonexistent': No such file", "--placement", "/nonexistent"),
    (TOPO, "was not expected: frobnicate", "frobnicate"),
]


class Refused(unittest.TestCase):
    def test_each_wrong_value_is_one_message(self):
        for program, says, *args in REFUSED:
            if program is None:
                continue
            name = os.path.basename(program)
            with self.subTest(program=name, args=args):
                done = run(program, *args, env=NO_JOB)
                self.assertEqual(done.returncode, 3 if program == TOPO else 2, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertIn(says, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertTrue(done.stderr.startswith(name + ": "), done.stderr)
                self.assertNotRegex(done.stderr, r"std::|CLI::|exception|terminate")

    def test_variables_as_well(self):
        started = {**NO_JOB, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "99999"}
        done = run(NET_PERF, "--plugin", PLUGIN, env=started)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("MASTER_PORT: '99999' is not a port", done.stderr)


class Help(unittest.TestCase):
    TYPES = re.compile(r"\b(TEXT|UINT|INT|FLOAT|BOOLEAN|PATH|FILE:|DIR|REQUIRED|Needs|Excludes)\b")

    def test_eighty_columns_without_a_librarys_words(self):
        pages = [(p,) for p in PROGRAMS]
        pages += [(TOPO, command) for command in ("why", "check", "tree", "dump", "probe")]
        for page in pages:
            with self.subTest(os.path.basename(page[0]), command=page[1:]):
                done = run(*page, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                for line in done.stdout.splitlines():
                    self.assertLessEqual(len(line), 80, line)
                    self.assertNotIn("{false}", line)
                options = re.search(r"Options:\n(.*?)\n\n", done.stdout + "\n\n", re.DOTALL)[1]
                for line in options.splitlines():
                    self.assertIsNone(self.TYPES.search(line[:26]), line)


class GoneReader(unittest.TestCase):
    """What stands before `| head -1` says nothing of it, whether SIGPIPE ends it or not."""

    def run_into_nothing(self, program, args, keep_signal):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return subprocess.run([program, *map(str, args)], stdout=writer, text=True,
                                  stderr=subprocess.PIPE, timeout=60, restore_signals=not keep_signal,
                                  env={**clean_environment(), **SOFT})
        finally:
            os.close(writer)

    def test_all_programs(self):
        rows = [(p, ["--help"]) for p in PROGRAMS]
        rows += [(INFO, []), (TOPO, []), (NET_PERF, ["--plugin", PLUGIN, *QUICK]),
                 (NET_PERF, ["--plugin", PLUGIN, *QUICK, "--json"])]
        if COLL_PERF:
            rows.append((COLL_PERF, ["--cpu", 2, "--plugin", PLUGIN, "-b", 8, "-e", 8, "-n", 1]))
        for program, args in rows:
            for keep_signal in (False, True):  # Python ignores it, and its children inherit that
                with self.subTest(os.path.basename(program), args=args, ignored=keep_signal):
                    done = self.run_into_nothing(program, args, keep_signal)
                    self.assertEqual(done.stderr, "")
                    self.assertNotEqual(done.returncode, 0)


class Interrupted(unittest.TestCase):
    """Ctrl-C reaches the whole group.  What was measured is printed, and the signal ends the run."""

    def start(self, *args):
        return subprocess.Popen([NET_PERF, "--plugin", PLUGIN, "--test", "latency", "--sizes",
                                 ",".join(["8"] * 1000), "--iters", "2000", "--repeats", "2", *args],
                                env={**clean_environment(), **SOFT}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)

    def workers(self, pid):
        """Their names, as ps and the counters show them."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                names = [pathlib.Path(f"/proc/{c}/comm").read_text().strip() for c in children]
            except OSError:
                names = []
            if len(names) == 2 and "exe" not in names and names[0] == names[1]:
                return names
            time.sleep(0.01)
        return names

    def test_the_rows_so_far(self):
        run_ = self.start()
        seen = ""
        while not re.match(r" *8 ", line := run_.stdout.readline()) and line:
            seen += line
        os.killpg(run_.pid, signal.SIGINT)
        rest, said = run_.communicate(timeout=60)
        self.assertIn("median", seen)
        self.assertEqual(run_.returncode, -signal.SIGINT, said)
        # Of two workers the one that ends later may say that the other has gone.
        self.assertRegex(said, r"\A(\[\d+\] WARN .*\n)*net_perf: interrupted \(SIGINT\) in phase '[^']*'\n\Z")
        for row in rest.splitlines():
            self.assertRegex(row, r"^ *8 ")

    def test_the_document(self):
        run_ = self.start("--json")
        self.assertEqual(self.workers(run_.pid), ["net_perf"] * 2)
        run_.send_signal(signal.SIGTERM)
        text, said = run_.communicate(timeout=60)
        self.assertEqual(run_.returncode, -signal.SIGTERM, said)
        found = json.loads(text)
        self.assertIn("interrupted (SIGTERM)", found["failure"])

    def test_a_comparison(self):
        run_ = self.start("--against", PLUGIN, "--rounds", "500")
        self.assertEqual(self.workers(run_.pid), ["net_perf"] * 2)
        os.killpg(run_.pid, signal.SIGINT)
        text, said = run_.communicate(timeout=60)
        self.assertEqual(run_.returncode, -signal.SIGINT, said)
        self.assertIn("# latency, 2 processes", text)
        self.assertIn("interrupted (SIGINT)", said)


class NoDevice(unittest.TestCase):
    """The cause, and no advice that has been followed."""

    def test_the_true_cause(self):
        rows = [({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1"),
                ({"NCCL_IB_HCA": "nothere"}, "NCCL_IB_HCA"),
                ({"TWINPATH_SOFT_HCAS": "soft0,state=down"}, "soft0")]
        programs = [(NET_PERF, [*QUICK])]
        if COLL_PERF:
            programs.append((COLL_PERF, ["--cpu", 2, "-b", 8, "-e", 8]))
        for env, cause in rows:
            for program, args in programs:
                with self.subTest(os.path.basename(program), env=env):
                    done = run(program, "--plugin", PLUGIN, *args, env={**SOFT, **env})
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(cause, done.stderr)
                    self.assertIn("no device", done.stderr)
                    self.assertNotIn("TWINPATH_FABRIC=soft", done.stderr)
        done = run(INFO, env={**NO_JOB, "NCCL_IB_DISABLE": "1"})
        self.assertIn("NCCL_IB_DISABLE=1", done.stdout)
        self.assertNotIn("Set TWINPATH_FABRIC=soft", done.stdout)


class EmptyRange(unittest.TestCase):
    def test_a_range_of_sizes_that_is_empty(self):
        done = net_perf("-b", "8k", "-e", "1k")
        self.assertEqual(done.returncode, 2)
        self.assertIn("the range is empty: -b 8k is above -e 1k", done.stderr)
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        done = run(COLL_PERF, "--cpu", 2, "--plugin", PLUGIN, "-b", "8k", "-e", "1k", env=SOFT)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("--begin 8k is above --end 1k", done.stderr)
        self.assertNotIn("OK", done.stdout)


class Pictures(unittest.TestCase):
    def test_a_file_that_cannot_be_written_is_said_before_anything_runs(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        for words in (["--cpu", 2], ["--cpu", 2, "--rank", "0/2", "--rendezvous", "127.0.0.1:9"]):
            done = run(COLL_PERF, *words, "--plugin", PLUGIN, "--plot", "/nowhere/x.svg", env=SOFT)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("--plot /nowhere/x.svg cannot be written: No such file", done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertNotIn("busbw", done.stdout)

    def test_a_picture_that_is_lost_is_no_success(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        done = run(COLL_PERF, "--cpu", 2, "--plugin", PLUGIN, "-b", 8, "-e", 8, "-n", 1, "--plot",
                   "/dev/full", env=SOFT)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("--plot /dev/full cannot be written", done.stderr)

    def test_the_picture(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "x.svg")
            done = run(COLL_PERF, "--cpu", 2, "--plugin", PLUGIN, "-b", 8, "-e", 128, "-n", 1, "--plot",
                       file, env=SOFT)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(file, encoding="utf-8") as svg:
                text = svg.read()
            for words in ("bus bandwidth", "all_reduce ring float", "all_reduce tree float"):
                self.assertIn(words, text)


class Files(unittest.TestCase):
    def test_a_file_that_is_no_platform_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as other:
            other.write("root:x:0:0:secret\nbin:x:1:1:secret\n")
            other.flush()
            done = run(TOPO, "--platform-file", other.name)
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(f"--platform-file {other.name}: is no platform file", done.stderr)
            self.assertNotIn("secret", done.stderr)
            # The plugin goes on without it, and says which variable it was.
            done = net_perf(*QUICK, env={"TWINPATH_PLATFORM_FILE": other.name})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr.count(other.name), 1, done.stderr)
            self.assertIn(f"TWINPATH_PLATFORM_FILE: {other.name}: is no platform file", done.stderr)
            self.assertNotIn("secret", done.stderr)
        done = run(TOPO, "--platform-file", "/nowhere/platform")
        self.assertEqual(done.returncode, 3)
        self.assertIn("--platform-file /nowhere/platform: cannot be read: No such file", done.stderr)

    def test_a_topology_that_is_not_there(self):
        done = net_perf(*QUICK, env={"TWINPATH_TOPOLOGY": "/nonexistent"})
        self.assertEqual(done.returncode, 0, done.stderr)  # placement only
        lines = [line for line in done.stderr.splitlines() if "/nonexistent" in line]
        self.assertEqual(len(lines), 1, done.stderr)  # of two workers
        self.assertIn("TWINPATH_TOPOLOGY", lines[0])
        self.assertIn("no such file", lines[0])


class Once(unittest.TestCase):
    def test_workers_that_find_the_same_fault_say_it_once(self):
        for more in ((), ("--threads", 2), ("--processes", 4)):
            with self.subTest(more):
                done = net_perf(*QUICK, *more, env={"TWINPATH_SOFT_HCAS": "soft0,speed=x"})
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stderr.count("expected Gbit/s"), 1, done.stderr)
                self.assertEqual(done.stderr.count("init failed"), 1, done.stderr)
                self.assertIn("worker 0, worker 1", done.stderr)
        done = net_perf(*QUICK, env={"TWINPATH_MODE": "bogus"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("is refused"), 1, done.stderr)

    def test_every_line_where_every_line_is_asked_for(self):
        done = net_perf(*QUICK, "--verbose", env={"TWINPATH_MODE": "bogus"})
        self.assertEqual(done.stderr.count("is refused"), 2, done.stderr)

    def test_ranks_that_find_the_same_fault_say_it_once(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        done = run(COLL_PERF, "--cpu", 4, "--plugin", PLUGIN, "-b", 8, "-e", 8,
                   env={**SOFT, "TWINPATH_SOFT_HCAS": "soft0,speed=x"})
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(done.stderr.count("expected Gbit/s"), 1, done.stderr)


class Timeouts(unittest.TestCase):
    def test_a_rank_that_is_alone_says_what_makes_it_wait_longer(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else takes it
            closed = taken.getsockname()[1]
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            for program, more in ((NET_PERF, []), (COLL_PERF, ["--cpu", 2])):
                for rank, where in (0, port), (1, closed):
                    if program is None:
                        continue
                    with self.subTest(os.path.basename(program), rank=rank):
                        done = run(program, "--plugin", PLUGIN, *more, "--rank", f"{rank}/2", "--timeout",
                                   1, "--rendezvous", f"127.0.0.1:{where}", env=SOFT)
                        self.assertNotEqual(done.returncode, 0)
                        self.assertIn("raise --timeout", done.stderr)
                        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_net_perf_does_not_blame_the_plugin_for_its_own_memory(self):
        if SLOW_MMAP is None:
            self.skipTest("a sanitizer's runtime wants to be preloaded first")
        done = net_perf("--test", "latency", "--sizes", "64k", "--timeout", 1, plugin=SOCKET_PLUGIN,
                        env={"LD_PRELOAD": SLOW_MMAP})
        self.assertEqual(done.returncode, 1)
        self.assertIn("timed out after 1.0 s in phase 'allocate ", done.stderr)
        self.assertIn("net_perf's own work", done.stderr)
        self.assertIn("--timeout", done.stderr)
        self.assertNotIn("may be blocking", done.stderr)


class Info(unittest.TestCase):
    def test_a_setting_that_is_refused_later_fails_as_well(self):
        for name, value in (("TWINPATH_SOFT_HCAS", "soft0,speed=x"), ("NCCL_IB_HCA", ":::"),
                            ("TWINPATH_TOPOLOGY", "/nonexistent"), ("TWINPATH_MODE", "bogus")):
            for args in ((), ("--json",)):
                with self.subTest(name):
                    done = run(INFO, *args, env={**SOFT, name: value})
                    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                    self.assertIn(name if name != "TWINPATH_SOFT_HCAS" else "speed=x", done.stderr)
                    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        done = run(INFO, env=SOFT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
