"""The exporter, the alert rules and the dashboard in front of a real Prometheus, on loopback."""
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import fleets
from counters_test import CLEAN, EXPORTER, Pair, parse

ROOT = pathlib.Path(os.environ["SOURCE_ROOT"])
MONITORING = ROOT / "tools/monitoring"
PAGE_WRITERS = os.environ.get("PAGE_WRITERS")
PROCESSES, PEERS = 64, 48
# Of 48 peers 42 are sent to and 6 received from: 32 of the former have series of their own.
ROWS = 32 + 1 + 6

PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
NONE = "no Prometheus here (Debian, Ubuntu: apt-get install --no-install-recommends prometheus)"
TOOL = unittest.skipUnless(PROMTOOL, NONE)
REAL = unittest.skipUnless(PROMETHEUS, NONE)


@functools.cache
def dashboard():
    """As the build makes it."""
    return json.loads(subprocess.run([sys.executable, MONITORING / "dashboard.py"], check=True,
                                     stdout=subprocess.PIPE, timeout=60).stdout)


def panels():
    return [p for p in dashboard()["panels"] if p["type"] != "row"]


def queries():
    """(where, expression) of the dashboard, of the alerts and of what is recorded for them."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    rules = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
    for name, expr in re.findall(r"- (?:alert|record): ([\w:]+)\n\s+expr: (\|\n(?:\s{10}.*\n)+|.*\n)", rules):
        yield name, expr.removeprefix("|").strip()


def asked(expression, seconds):
    """As Grafana would ask."""
    return (expression.replace("$__rate_interval", f"{seconds}s").replace("$node", ".*"))


class Writers:
    """PROCESSES processes that count, and an adapter's counters."""

    def __init__(self, processes=PROCESSES, peers=PEERS):
        self.parent = subprocess.Popen([PAGE_WRITERS, str(processes), str(peers)], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pids = [int(self.parent.stdout.readline()) for _ in range(processes)]
        self.sysfs = tempfile.TemporaryDirectory()
        port = pathlib.Path(self.sysfs.name, "class/infiniband/mlx5_0/ports/1/hw_counters")
        port.mkdir(parents=True)
        for name in "packet_seq_err", "np_cnp_sent":
            (port / name).write_text("1\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.parent.stdin.close()
        self.parent.stdout.close()
        self.parent.wait()
        self.sysfs.cleanup()


class Exporter:
    def __init__(self, sysfs="/usr"):
        self.server = subprocess.Popen([EXPORTER, "--listen", "127.0.0.1:0", "--sysfs", sysfs],
                                       env=CLEAN, text=True, stdout=subprocess.PIPE)
        self.address = urllib.parse.urlsplit(self.server.stdout.readline().strip()).netloc

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()


class Prometheus:
    """Scrapes every so many seconds, and is gone with its data afterwards.  A scrape that takes longer
    than that has failed: machines may be busy."""

    def __init__(self, target, rules="", every=2):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="twinpath-prometheus-"))
        (self.folder / "rules.yml").write_text(rules)
        (self.folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": f"{every}s", "scrape_timeout": f"{every}s",
                       "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"] if rules else [],
            "scrape_configs": [{"job_name": "twinpath",
                                "static_configs": [{"targets": [target]}]}]}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.log = open(self.folder / "log", "w+", encoding="utf-8")
        self.server = subprocess.Popen(
            [PROMETHEUS, f"--config.file={self.folder}/prometheus.yml",
             f"--storage.tsdb.path={self.folder}/data", "--log.level=warn",
             f"--web.listen-address={self.url.removeprefix('http://')}"],
            stdout=self.log, stderr=subprocess.STDOUT, env=CLEAN)

    def ask(self, path, **query):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def value(self, expression):
        """Of an expression with one series; None without."""
        result = self.ask("query", query=expression)["result"]
        assert len(result) < 2, result
        return float(result[0]["value"][1]) if result else None

    def until(self, holds, seconds=40):
        """Its last answer."""
        end = time.monotonic() + seconds
        while True:
            try:
                said = holds()
                if said or time.monotonic() > end:
                    return said
            except OSError:
                if time.monotonic() > end or self.server.poll() is not None:
                    self.log.seek(0)
                    raise AssertionError(self.log.read()) from None
            time.sleep(0.25)

    def firing(self):
        return {(a["labels"]["alertname"], a["labels"].get("rail"), a["labels"].get("pid"))
                for a in self.ask("alerts")["alerts"] if a["state"] == "firing"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.terminate()
        try:
            self.server.wait(10)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Rules(unittest.TestCase):
    @TOOL
    def test_each_alert_fires_for_what_it_is_for(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in MONITORING / "alerts.yml", ROOT / "test/tools/alerts_test.yml":
                shutil.copy(file, folder)
            with open(f"{folder}/fleets.json", "w", encoding="utf-8") as file:
                fleets.write(file)
            for args in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"),
                         ("test", "rules", "fleets.json")):
                done = subprocess.run([PROMTOOL, *args], cwd=folder, capture_output=True, text=True,
                                      timeout=200)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_none_is_left_out_there(self):
        rules = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
        tried = (ROOT / "test/tools/alerts_test.yml").read_text(encoding="utf-8")
        over_fleets = (ROOT / "test/tools/fleets.py").read_text(encoding="utf-8")
        for name in re.findall(r"- alert: (\w+)", rules):
            self.assertIn(f'"alertname": "{name}"', over_fleets)
            self.assertRegex(tried, rf"alertname: {name}\n\s+exp_alerts:")
            self.assertRegex(tried, rf"alertname: {name}}}")


class Dashboard(unittest.TestCase):
    """What Grafana's JSON model wants; Grafana itself is no package of Debian's."""

    def test_panels(self):
        made = dashboard()
        self.assertEqual({v["name"] for v in made["templating"]["list"]}, {"datasource", "node"})
        self.assertGreaterEqual(made["schemaVersion"], 36)  # datasources are objects since then
        ids = [p["id"] for p in made["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        cells = set()
        for p in made["panels"]:
            at = p["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, p["title"])
            mine = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                    for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(mine & cells, p["title"])
            cells |= mine
            self.assertIn(p["type"], ("row", "stat", "timeseries", "table"))
            for t in p.get("targets", []):
                self.assertEqual(t["datasource"], {"type": "prometheus", "uid": "${datasource}"})
            refs = [t["refId"] for t in p.get("targets", [])]
            self.assertEqual(len(refs), len(set(refs)))
        self.assertGreater(len(panels()), 15)

    def test_metrics_and_labels_are_the_exporters(self):
        with Writers(1) as writers:
            text = subprocess.run([EXPORTER, "--once", "--sysfs", writers.sysfs.name], env=CLEAN,
                                  capture_output=True, text=True, timeout=60, check=True).stdout
        labels = {}
        for name, written in parse(text):
            labels.setdefault(name, set()).update(re.findall(r'(\w+)="', written or ""))
        for where, expression in queries():
            if where.startswith("twinpath:"):
                by = re.findall(r"by \(([^)]*)\)", expression)
                labels[where] = set(re.findall(r"\w+", " ".join(by)))
        for where, expression in queries():
            used = set()
            for name, matchers in re.findall(r"(twinpath[_:]\w+)(?:\{([^}]*)\})?", expression):
                with self.subTest(where=where, metric=name):
                    self.assertIn(name, labels)
                    self.assertLessEqual(set(re.findall(r"(\w+)[=!]", matchers)), labels[name])
                used |= labels.get(name, set())
            for by in re.findall(r"(?:by|on|ignoring) \(([^)]*)\)", expression):
                with self.subTest(where=where, by=by):
                    self.assertLessEqual(set(re.findall(r"\w+", by)), used)
        for panel in panels():
            for target in panel["targets"]:
                by = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
                self.assertLessEqual(set(re.findall(r"{{(\w+)}}", target["legendFormat"])), by,
                                     panel["title"])


@REAL
class Scraped(unittest.TestCase):
    def test_a_node_of_64_processes(self):
        with Writers() as writers, Exporter(writers.sysfs.name) as exporter, \
                Prometheus(exporter.address, every=4) as prometheus:
            count = 'count(twinpath_process_info{node="node99"})'
            self.assertEqual(prometheus.until(lambda: prometheus.value(count)), PROCESSES)
            # Series of a process are bounded, however many peers it has.
            rows = 'twinpath_messages_total{node="node99"}'
            self.assertTrue(prometheus.until(
                lambda: prometheus.value(f"count({rows})") == PROCESSES * ROWS))
            for series in prometheus.ask("query", query='count by (pid) (twinpath_messages_total'
                                         '{node="node99"})')["result"]:
                self.assertEqual(float(series["value"][1]), ROWS)
            self.assertEqual(prometheus.value(
                'count(twinpath_messages_total{node="node99",peer="other"})'), PROCESSES)
            self.assertLess(prometheus.value("scrape_samples_scraped"), PROCESSES * ROWS * 25)

            # Panels have something to show.
            for where, expression in queries():
                with self.subTest(where=where):
                    query = asked(expression, 20)
                    if where.lower().startswith("twinpath"):  # alerts need not
                        prometheus.ask("query", query=query)
                    else:
                        self.assertTrue(prometheus.until(
                            lambda q=query: prometheus.ask("query", query=q)["result"], 20))

            # Of a process that is killed nothing is left after the next scrape.
            dead = writers.pids[5]
            one = f'count({{__name__=~"twinpath_.*",pid="{dead}"}})'
            self.assertTrue(prometheus.until(lambda: (prometheus.value(one) or 0) > ROWS))
            os.kill(dead, signal.SIGKILL)
            self.assertTrue(prometheus.until(lambda: prometheus.value(one) is None
                                             and prometheus.value(count) == PROCESSES - 1, 20))

    def test_alerts_go_off(self):
        """The real rules with shorter times."""
        rules = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
        for written, short in ((r"for: \d+[sm]", "for: 1s"), (r"\[5m\]", "[10s]"),
                               (r"> 300", "> 3"), (r"> 60\n", "> 2\n")):
            rules, times = re.subn(written, short, rules)
            self.assertGreater(times, 0, written)
        slow = {"TWINPATH_SOFT_FAULTS": "delay_us=100000", "TWINPATH_SOFT_HCAS": "slowrail"}
        job = {"COMMUNICATOR": "training"}
        with Pair(8192, env={"TWINPATH_SOFT_HCAS": "raila", **job}, sender_env=slow), \
                Pair(8192, env={"TWINPATH_SOFT_HCAS": "quickrail", **job}, receiver_late=0.001) \
                as quick, \
                Exporter() as exporter, Prometheus(exporter.address, rules) as prometheus:
            slow_rail = ("TwinpathRailSlow", "slowrail", None)
            self.assertTrue(prometheus.until(lambda: slow_rail in prometheus.firing(), 80))
            stopped = quick.processes["receiver"]

            def stalled():
                return ("TwinpathPeerStalled", None, str(stopped.pid)) in prometheus.firing()

            self.assertFalse(stalled())
            stopped.send_signal(signal.SIGSTOP)
            self.assertTrue(prometheus.until(stalled, 80))


if __name__ == "__main__":
    unittest.main()
