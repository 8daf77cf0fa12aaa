"""net_perf and coll_perf as processes that a launcher, or a person, started: one result, from rank
0, and what differs when the ranks are on two hosts.  The second host is a process with another
boot id and another clock; data goes over local sockets all the same, which a small plugin of the tests does."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from tool import NET_PERF, NO_JOB, PLUGIN, SOCKET_PLUGIN, clean_environment, run

COLL_PERF = os.environ["COLL_PERF"]
SHORT = ("--iters", "100", "--repeats", "2")
NAMES = {"OMPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
         "PMI": ("PMI_RANK", "PMI_SIZE"),
         "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")}


def free_port(host="127.0.0.1"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


CLOCK_AHEAD = 5000  # seconds


def other_host():
    """Words before a command that make it run on another host, as far as the tools can tell: with
    another boot id and another clock."""
    words = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", "-T", "--monotonic",
             str(CLOCK_AHEAD), "-f", "--kill-child"]
    script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    return [*words, "sh", "-c", script]


class Job:
    """Ranks of one job; `hosts` has one entry a rank, 0 for this host."""

    def __init__(self, program, ranks, *args, launcher=None, hosts=None, env=None, own=None,
                 at="127.0.0.1"):
        self.folder = tempfile.TemporaryDirectory()
        port = free_port(at.strip("[]"))
        self.ranks = []
        for rank in range(ranks):
            place = {}
            words = [program, "--plugin", SOCKET_PLUGIN if hosts else PLUGIN, "--timeout", "40",
                     "--rendezvous", f"{at}:{port}", *map(str, args), *(own or {}).get(rank, ())]
            if launcher is None:
                words += ["--rank", f"{rank}/{ranks}"]
            else:
                place = dict(zip(NAMES[launcher], (str(rank), str(ranks))))
                if launcher == "Slurm":
                    place["SLURM_STEP_ID"] = "3"
            host = (hosts or [0] * ranks)[rank]
            if host:
                boot = os.path.join(self.folder.name, f"boot{host}")
                with open(boot, "w", encoding="ascii") as out:
                    out.write(f"{host}-other-boot\n")
                words = [*other_host(), boot, *words]
            self.ranks.append(subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**clean_environment(), **NO_JOB, **place, **(env or {})}))

    def end(self, limit=90):
        texts = [rank.communicate(timeout=limit) for rank in self.ranks]
        self.folder.cleanup()
        return [rank.returncode for rank in self.ranks], texts


SOFT = {"TWINPATH_FABRIC": "soft"}


class NetPerf(unittest.TestCase):
    def document(self, job):
        status, texts = job.end()
        self.assertEqual(set(status), {0}, texts)
        for out, _ in texts[1:]:
            self.assertEqual(out, "")  # rank 0 alone prints
        report = json.loads(texts[0][0])
        self.assertEqual(report["failure"], "")
        for row in report["results"]:
            self.assertEqual(row["wrong"], 0)
        return report

    def test_each_launcher_and_a_person(self):
        for launcher in (*NAMES, None):
            report = self.document(Job(NET_PERF, 2, "--json", "--test", "latency", "--sizes", "8,4k",
                                       *SHORT, launcher=launcher, env=SOFT))
            self.assertEqual(len(report["results"]), 2)
            self.assertEqual(report["options"]["workers"], 2)
            self.assertEqual(report["hosts"], [socket.gethostname()] * 2)

    def test_two_pairs(self):
        for test in ("bw", "bibw", "rate", "conns"):
            report = self.document(Job(NET_PERF, 4, "--json", "--test", test, *SHORT,
                                       *(() if test == "conns" else ("--sizes", "4k")),
                                       launcher="OMPI", env=SOFT))
            self.assertEqual(len(report["results"]), 1)

    def test_two_hosts_have_two_clocks(self):
        if run(*other_host(), "/proc/version", "true").returncode != 0:
            self.skipTest("no mount or time namespace can be made here")
        # Times that are off by the clocks' difference would be more than an hour, or less than none.
        for hosts in ([0, 1], [1, 0], [0, 1, 1, 0]):
            begin = time.monotonic()
            report = self.document(Job(NET_PERF, len(hosts), "--json", "--test", "bw", *SHORT,
                                       "--sizes", "64k", hosts=hosts))
            row = report["results"][0]
            least = 64 * 1024 * 100 / (time.monotonic() - begin) / 1e9
            for key in ("median_gbytes_per_s", "best_gbytes_per_s", "p99_slowest_gbytes_per_s"):
                self.assertGreater(row[key], least)
                self.assertLess(row[key], 1000)
        report = self.document(Job(NET_PERF, 2, "--json", "--test", "conns", hosts=[0, 1]))
        self.assertGreater(report["results"][0]["open_ms"], 0)
        self.assertLess(report["results"][0]["open_ms"], 60000)

    def test_a_table_names_the_hosts(self):
        status, texts = Job(NET_PERF, 2, "--test", "rate", *SHORT, env=SOFT).end()
        self.assertEqual(status, [0, 0], texts)
        self.assertIn(f"# workers on {socket.gethostname()} {socket.gethostname()}\n", texts[0][0])

    def test_other_options_than_rank_0_are_refused_everywhere(self):
        status, texts = Job(NET_PERF, 2, *SHORT, own={1: ("--sizes", "9")}, env=SOFT).end()
        self.assertEqual(status, [2, 2], texts)
        for _, err in texts:
            self.assertIn("rank 1 on ", err)
            self.assertIn("other options than rank 0", err)

    def test_a_worker_that_dies_is_named_with_its_host_and_nobody_waits(self):
        job = Job(NET_PERF, 2, "--json", "--test", "bw", "--sizes", "1m", "--iters", "100000000",
                  env=SOFT)
        children = f"/proc/{job.ranks[1].pid}/task/{job.ranks[1].pid}/children"
        worker = ""
        for _ in range(2000):
            with open(children, encoding="ascii") as f:
                worker = f.read().strip()
            if worker:
                break
            time.sleep(0.01)
        time.sleep(1)
        os.kill(int(worker.split()[0]), signal.SIGKILL)
        status, texts = job.end(30)
        self.assertEqual(status, [1, 1], texts)
        failure = json.loads(texts[0][0])["failure"]
        self.assertIn(f"worker 1 on {socket.gethostname()}: was killed by signal Killed", failure)

    def test_a_job_process_that_dies_takes_its_worker_along_and_ends_the_run(self):
        for victim in (0, 1):
            job = Job(NET_PERF, 2, "--test", "bw", "--sizes", "1m", "--iters", "100000000", env=SOFT)
            time.sleep(2)
            job.ranks[victim].kill()
            status, texts = job.end(30)
            self.assertEqual(status[victim], -signal.SIGKILL)
            self.assertEqual(status[1 - victim], 1, texts)
            if victim == 1:
                self.assertIn("its net_perf is gone", texts[0][1])

    def refused(self, says, *args, env=None):
        done = run(NET_PERF, *args, env={**NO_JOB, **SOFT, **(env or {})})
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(says, done.stderr)

    def test_what_cannot_be_is_refused_at_once(self):
        self.refused("is not RANK/RANKS", "--rank", "2/2")
        self.refused("--rank needs --rendezvous HOST:PORT", "--rank", "0/2")
        self.refused("workers go in pairs", "--rank", "0/3", "--rendezvous", "127.0.0.1:9")
        self.refused("leave out --threads", "--rank", "0/2", "--threads", 2)
        self.refused("is one thread of one process", "--test", "solo",
                     env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
        self.refused("Slurm started 2 ranks", env={
            "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "MASTER_ADDR": "",
            "SLURM_STEP_NODELIST": "", "SLURM_NODELIST": ""})

    def test_no_mpi_is_a_run_of_its_own(self):
        done = run(NET_PERF, "--no-mpi", "--plugin", PLUGIN, *SHORT,
                   env={**SOFT, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_ranks_meet_over_ipv6(self):
        try:
            free_port("::1")
        except OSError:
            self.skipTest("no IPv6 on the loopback interface")
        for program, args in ((NET_PERF, SHORT), (COLL_PERF, CollPerf.SMALL)):
            status, texts = Job(program, 2, *args, at="[::1]", env=SOFT).end()
            self.assertEqual(status, [0, 0], texts)

    def test_help_says_how_two_hosts_are_run(self):
        for program in (NET_PERF, COLL_PERF):
            text = run(program, "--help").stdout
            for part in ("mpirun -np 2", "srun -N 2", "--rank 1/2 --rendezvous"):
                self.assertIn(part, text)


class CollPerf(unittest.TestCase):
    SMALL = ("--cpu", "2", "-b", "8", "-e", "64k", "-f", "64", "-n", "1", "-w", "0")

    def test_one_host_by_hand_uses_the_soft_hca(self):
        status, texts = Job(COLL_PERF, 2, *self.SMALL).end()
        self.assertEqual(status, [0, 0], texts)
        self.assertIn("TWINPATH_FABRIC=soft  (set by --cpu", texts[0][0])

    def test_json_is_one_document_of_rank_0(self):
        status, texts = Job(COLL_PERF, 2, *self.SMALL, "--json", launcher="PMI").end()
        self.assertEqual(status, [0, 0], texts)
        self.assertEqual(json.loads(texts[0][0])["tool"], "coll_perf")
        self.assertEqual(texts[1][0], "")

    def test_between_hosts_the_fabric_is_left_open(self):
        if run(*other_host(), "/proc/version", "true").returncode != 0:
            self.skipTest("no mount or time namespace can be made here")
        status, texts = Job(COLL_PERF, 2, *self.SMALL, hosts=[0, 1]).end()
        self.assertEqual(status, [0, 0], texts)
        self.assertIn("# Out of bounds values : 0 OK", texts[0][0])
        self.assertNotIn("TWINPATH_FABRIC", texts[0][0])


if __name__ == "__main__":
    unittest.main()
