"""tools/JSON.md and the documents that the tools print say the same: every key that is printed is
explained under the document's schema, and every key that is explained is one that a tool writes."""
import json
import os
import pathlib
import re
import unittest

from documents import TOOLS, documented, paths_of
from tool import INFO, PLUGIN, SOURCE_ROOT, net_perf_json, run

TOPO = os.environ["TWINPATH_TOPO"]
COLL_PERF = os.environ.get("COLL_PERF")
ROOT = pathlib.Path(SOURCE_ROOT)
MACHINES = ROOT / "test/golden/topology"
SHORT = ("--sizes", 8, "--iters", 20, "--repeats", 2)


class Documents(unittest.TestCase):
    def explains(self, document, schema):
        self.assertEqual(document["schema"], schema)
        explained = documented()[schema]
        # What is the same four times is explained once.
        same = re.compile(r"^probes\[\]\.(peermem|doorbell|atomics)\.|"
                          r"^(peer\.pairs\[\]\.\w+)\.(send|receive)\b.*")
        missing = {p for p in paths_of(document) if p not in explained and not same.match(p)}
        self.assertEqual(missing, set(), f"not in tools/JSON.md under {schema}")

    def test_net_perf(self):
        for args in (("--test", "latency"), ("--test", "bw"), ("--test", "step"),
                     ("--test", "solo"), ("--test", "solo", "--loop", "poll"),
                     ("--test", "rate", "--against", PLUGIN, "--rounds", 2)):
            with self.subTest(args):
                self.explains(net_perf_json(*args, *SHORT), "net_perf/3")
        self.explains(net_perf_json("--test", "conns"), "net_perf/3")

    def test_coll_perf(self):
        if COLL_PERF is None:
            self.skipTest("coll_perf is not built")
        done = run(COLL_PERF, "--cpu", 2, "--no-mpi", "--plugin", PLUGIN, "-b", 8, "-e", 8, "-n", 1,
                   "--json")
        self.explains(json.loads(done.stdout), "coll_perf/2")

    def test_info(self):
        done = run(INFO, "--json", env={"TWINPATH_FABRIC": "soft"})
        self.explains(json.loads(done.stdout), "twinpath-info/2")

    def test_topo(self):
        machines = sorted(MACHINES.glob("*.hwloc.xml"))
        for machine in machines:
            first = json.loads(run(TOPO, "--input", machine, "--json").stdout)
            hca = first["hcas"][0]["name"]
            with self.subTest(machine.name):
                for words, schema in (((), ""), (("tree",), ""), (("check",), "-check"),
                                      (("why", "GPU0", hca), "-why")):
                    done = run(TOPO, *words, "--input", machine, "--json")
                    version = 2 if schema else 3
                    self.explains(json.loads(done.stdout), f"twinpath-topo{schema}/{version}")
        done = run(TOPO, "--input", machines[0], "--peer", machines[0], "--json")
        self.assertIn("peer", json.loads(done.stdout))
        self.explains(json.loads(done.stdout), "twinpath-topo/3")
        self.explains(json.loads(run(TOPO, "probe", "--json").stdout), "twinpath-topo-probe/2")

    def test_nothing_is_explained_that_no_tool_writes(self):
        written = set()
        # Causes of waiting have their names from there.
        for source in [*TOOLS.rglob("*.cc"), ROOT / "plugin/base/counters.h"]:
            written |= set(re.findall(r'"(\w+)"', source.read_text(encoding="utf-8")))
        for schema, paths in documented().items():
            for path in paths:
                key = path.rpartition(".")[2].removesuffix("[]")
                self.assertIn(key, written, f"{path} of {schema}")


if __name__ == "__main__":
    unittest.main()
