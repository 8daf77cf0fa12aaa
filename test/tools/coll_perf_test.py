"""coll_perf without a GPU: help, bad options, --cpu over the soft HCA, and missing or old libraries
(with stand-ins for the CUDA driver and NCCL)."""
import ctypes
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from tool import NO_JOB, PLUGIN, clean_environment, run

COLL_PERF = os.environ["COLL_PERF"]
FAKE_NCCL = os.environ["FAKE_NCCL"]
FAKE_DRIVER = os.environ["FAKE_DRIVER"]
FAKE_OLD_DRIVER = os.environ["FAKE_OLD_DRIVER"]
SMALL = ("-b", 4, "-e", "64k", "-n", 2, "-w", 1)


def coll_perf(*args, env=None, limit=120):
    return run(COLL_PERF, *args, env={**NO_JOB, **(env or {})}, limit=limit)


def stand_ins(**files):
    """The environment in which the loader finds these files as libcuda.so.1 and libnccl.so.2.  Not
    LD_PRELOAD: a sanitizer's runtime wants to be first."""
    names = {"cuda": "libcuda.so.1", "nccl": "libnccl.so.2"}
    folder = tempfile.mkdtemp()
    unittest.addModuleCleanup(shutil.rmtree, folder)
    for which, file in files.items():
        os.symlink(file, os.path.join(folder, names[which]))
    return {"LD_LIBRARY_PATH": ":".join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))}


def has_library(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


class Case(unittest.TestCase):
    def fails(self, status, *args, says, **more):
        done = coll_perf(*args, **more)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for text in (says,) if isinstance(says, str) else says:
            self.assertIn(text, done.stderr)
        return done


class Help(Case):
    def test_help_names_units_environment_exit_status_and_examples(self):
        done = coll_perf("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for text in ("Examples:", "powers of 1024", "busbw", "Exit status:", "--scenario",
                     "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_NVLS_ENABLE=0",
                     "NCCL_NET_GDR_LEVEL=SYS", "NCCL_NET_PLUGIN=",
                     "NCCL_NET=", "TWINPATH_FABRIC=soft"):
            self.assertIn(text, " ".join(done.stdout.split()))
        self.assertEqual(coll_perf("--version").returncode, 0)

    def test_help_lists_every_variable_that_is_set(self):
        listed = coll_perf("--help").stdout
        done = coll_perf("--via-plugin", "--plugin", PLUGIN,
                         env=stand_ins(cuda=FAKE_DRIVER, nccl=FAKE_NCCL))
        told = [line[2:].split("=")[0] for line in done.stdout.splitlines() if "(set by" in line]
        self.assertIn("NCCL_P2P_DISABLE", told)
        for name in told:
            self.assertIn(name + "=", listed)


class BadOptions(Case):
    def refused(self, *args, says):
        self.fails(2, *args, says=says)

    def test_each_is_refused_with_what_is_allowed(self):
        self.refused("--frobnicate", says="--frobnicate")
        self.refused("--collective", "gather", says=('"gather" is unknown', "reduce_scatter"))
        self.refused("--type", "float,complex", says=('"complex" is unknown', "bf16"))
        self.refused("--type", "", says="at least one name")
        self.refused("--collective", "", says="at least one name")
        self.refused("--op", "avg", says=('"avg" is unknown', "sum, prod, max or min"))
        self.refused("--algo", "star", "--cpu", 2, says='"star" is unknown; use ring, tree or both')
        self.refused("--scenario", "flood", says=('"flood" is unknown', "many-comms", "again"))
        for option in ("--register", "--graph"):
            for other in (["--cpu"], ["--scenario", "again"]):
                self.refused(option, *other, says="are for the table of collectives on GPUs")
        self.refused("-b", "5x", says='--begin "5x" is not a size')
        self.refused("-b", "0", says='--begin "0" is not a size')
        self.refused("-e", "-8", says='--end "-8" is not a size')
        self.refused("--gpus", "0,,1", says="is not a GPU number")
        self.refused("--gpus", "1,1", says="names GPU 1 twice")
        for option, value in (("--factor", 1), ("--iterations", 0), ("--warmup", -1),
                              ("--timeout", 0), ("--cpu", 1), ("--cpu", 257), ("--comms", 65),
                              ("--net-device", -1), ("--iterations", "many")):
            self.refused(option, value, says=option)

    def test_what_the_cpu_mode_has_not_is_refused(self):
        self.refused("--cpu", 2, "--type", "half", says="half is not offered with --cpu; use float")
        self.refused("--cpu", 2, "--op", "max", says="--cpu offers --op sum only")
        self.refused("--cpu", 2, "-c", "alltoall", says="--cpu offers --collective all_reduce only")
        self.refused("--cpu", 2, "--scenario", "abort", says="needs GPUs and NCCL")

    def test_a_net_device_that_is_not_there_says_which_there_are(self):
        self.fails(3, "--cpu", 2, "--plugin", PLUGIN, "--net-device", 7, *SMALL,
                   says=("no device '7'; there are: 0 soft0",))


class Cpu(Case):
    def check(self, ranks, algorithms, *args, sizes=SMALL):
        done = coll_perf("--cpu", ranks, "--plugin", PLUGIN, "--json", *sizes, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["tool"], "coll_perf")
        self.assertEqual(report["wrong"], 0)
        self.assertEqual(report["options"]["cpu"], ranks)
        environment = report["circumstances"]["environment"]
        self.assertEqual(environment["NCCL_NET_PLUGIN"], PLUGIN)
        self.assertEqual(environment["TWINPATH_FABRIC"], "soft")
        notes = "\n".join(report["notes"])
        for rank in range(ranks):
            self.assertIn(f"rank {rank} pid ", notes)
        rows = report["results"]
        self.assertEqual({row["what"] for row in rows}, {f"all_reduce {a}" for a in algorithms})
        for row in rows:
            for place in ("out_of_place", "in_place"):
                self.assertEqual(row[place]["wrong"], 0)
                self.assertGreater(row[place]["time_us"], 0)
                factor = row[place]["busbw_gb_s"] / row[place]["algbw_gb_s"]
                self.assertAlmostEqual(factor, 2 * (ranks - 1) / ranks)
        return rows

    def test_two_processes(self):
        rows = self.check(2, ["ring", "tree"])
        self.assertEqual([r["bytes"] for r in rows], [4, 16, 64, 256, 1024, 4096, 16384, 65536] * 2)

    def test_four_processes_every_type_ring_and_tree(self):
        rows = self.check(4, ["ring", "tree"], "--algo", "both", "--type", "float,int32,int8", "-f",
                          64)
        self.assertEqual({row["type"] for row in rows}, {"float", "int32", "int8"})

    def test_odd_ranks_and_sizes_that_no_chunk_divides(self):
        for algorithm in ("tree", "ring"):
            rows = self.check(3, [algorithm], "--algo", algorithm,
                              sizes=("-b", 100004, "-e", 100004, "-n", 2))
            self.assertEqual([row["count"] for row in rows], [25001])

    def test_the_table_ends_with_the_count_of_wrong_elements(self):
        done = coll_perf("--cpu", 2, "--plugin", PLUGIN, "-b", 64, "-e", 64, "-n", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("# Out of bounds values : 0 OK", done.stdout)
        self.assertIn("(set by --cpu)", done.stdout)
        self.assertNotIn("\033", done.stderr)  # no progress bar: stderr is not a terminal
        done = coll_perf("--cpu", 2, "--plugin", PLUGIN, "-b", 64, "-e", 64, "-n", 1, "--check", 0)
        self.assertIn("not checked", done.stdout)

    def test_a_job_environment_is_not_followed_when_told_so(self):
        done = coll_perf("--cpu", 2, "--plugin", PLUGIN, "-b", 64, "-e", 64, "-n", 1, "--no-mpi",
                         env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "5"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_ranks_of_a_job_find_each_other(self):
        env = {**clean_environment(), **NO_JOB, "OMPI_COMM_WORLD_SIZE": "2",
               "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": f"test-{os.getpid()}"}
        words = [COLL_PERF, "--cpu", "2", "--plugin", PLUGIN, "--timeout", "30", *map(str, SMALL)]
        ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**env, "OMPI_COMM_WORLD_RANK": str(r)}) for r in (1, 0)]
        texts = [rank.communicate(timeout=90) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], texts)
        self.assertEqual(texts[0][0], "")  # rank 0 alone prints
        self.assertIn("# Out of bounds values : 0 OK", texts[1][0])

    def test_a_job_whose_first_node_is_unknown_says_what_to_give(self):
        self.fails(2, "--cpu", 2, "--plugin", PLUGIN, *SMALL,
                   env={"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": ""},
                   says=("PMI started 2 ranks", "--rendezvous HOST:PORT"))


class Again(Case):
    def test_a_network_must_be_named(self):
        self.fails(2, "--scenario", "again", env=stand_ins(cuda=FAKE_DRIVER, nccl=FAKE_NCCL),
                   says="--scenario again needs NCCL_NET")


class Missing(Case):
    """What is not installed is exit status 3 and a message with the remedy."""

    @classmethod
    def setUpClass(cls):
        cls.DRIVER = stand_ins(cuda=FAKE_DRIVER)

    def test_nccl_too_old(self):
        env = stand_ins(cuda=FAKE_DRIVER, nccl=FAKE_NCCL)
        for version, text in ((21805, "2.18.5"), (2804, "2.8.4"), (0, "0.0.0")):
            done = self.fails(3, env={**env, "FAKE_NCCL_VERSION": str(version)},
                              says=(f"libnccl.so.2 is NCCL {text}, too old: 2.19 or newer is ",
                                    "give another one with --nccl PATH"))
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_nccl_too_old_in_a_job(self):
        self.fails(3, "--nccl", FAKE_NCCL, says="is NCCL 2.18.5, too old",
                   env={"FAKE_NCCL_VERSION": "21805", "OMPI_COMM_WORLD_RANK": "1",
                        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})

    def test_nccl_too_old_for_a_plugin_path(self):
        self.fails(3, "--plugin", PLUGIN, "--nccl", FAKE_NCCL,
                   env={**self.DRIVER, "FAKE_NCCL_VERSION": "22005"},
                   says=("NCCL 2.20 takes no path in NCCL_NET_PLUGIN", "LD_LIBRARY_PATH"))

    def test_nccl_missing_or_something_else(self):
        self.fails(3, "--nccl", "/nowhere/libnccl.so.2", env=self.DRIVER,
                   says=("NCCL cannot be opened (/nowhere/libnccl.so.2", "install libnccl2",
                         "--nccl PATH", "--cpu 4"))
        self.fails(3, "--nccl", "libm.so.6", env=self.DRIVER,
                   says="libm.so.6 has no ncclGetVersion: it is not NCCL")

    def test_an_nccl_that_refuses_to_start_ends_every_rank(self):
        self.fails(4, "--nccl", FAKE_NCCL, "--timeout", 20, env=self.DRIVER,
                   says=("NCCL error 3 (this NCCL is a stand-in)", "NCCL_DEBUG=WARN"))

    def test_no_cuda_driver_library(self):
        if has_library("libcuda.so.1"):
            self.skipTest("libcuda.so.1 is installed here")
        self.fails(3, says=("libcuda.so.1 not found", "driver is not installed", "--cpu 4"))

    def test_cuda_library_without_a_driver(self):
        self.fails(3, env={**self.DRIVER, "FAKE_CUDA_INIT": "100"},
                   says=("the NVIDIA driver does not start: CUDA error 100 (CUDA_ERROR_NO_DEVICE",
                         "check nvidia-smi", "--cpu 4"))

    def test_a_driver_without_gpus_or_with_fewer_than_asked_for(self):
        self.fails(3, env={**self.DRIVER, "FAKE_GPUS": "0"}, says="no GPU; use --cpu 4")
        self.fails(3, "--ngpus", 3, env=self.DRIVER,
                   says=("GPU 2 is asked for, but this host shows 2", "CUDA_VISIBLE_DEVICES"))

    def test_a_cuda_library_that_is_too_old_names_what_it_lacks(self):
        self.fails(3, env=stand_ins(cuda=FAKE_OLD_DRIVER),
                   says=("libcuda.so.1 has no cu", "update the NVIDIA driver"))

    def test_plugin_missing_or_something_else(self):
        for mode in (("--cpu", 2), ("--via-plugin", "--nccl", FAKE_NCCL)):
            self.fails(3, *mode, "--plugin", "/nowhere/libnccl-net.so", env=self.DRIVER,
                       says=("/nowhere/libnccl-net.so", "give its path with --plugin"))
            self.fails(3, *mode, "--plugin", "libm.so.6", env=self.DRIVER,
                       says=("libm.so.6 has no ncclNetPlugin_v6", "it is not a net plugin"))


if __name__ == "__main__":
    unittest.main()
