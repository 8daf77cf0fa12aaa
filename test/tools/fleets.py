"""Made-up fleets for tools/monitoring/alerts.yml, as promtool's rule tests: a day of healthy jobs that
have nothing in common, in which no alert may fire, and fleets with one thing wrong each, in which the
alerts that name it fire and no others.

  fleets.py > fleets.json, beside alerts.yml; then promtool test rules fleets.json
"""
import json
import sys

SCRAPED = 2  # minutes between scrapes
STEP = 60 * SCRAPED
DAY = 24 * 60
KIB, MIB = 1 << 10, 1 << 20
# What has ever fired, whatever its value.
FIRED = ("group by (alertname, job, node, pid, rail, hca, port) "
         "(max_over_time(ALERTS{alertstate=\"firing\"}[25h]))")


class Rank:
    """A process with one rail.  What varies is a function of the minute."""

    def __init__(self, node, pid, rail, size, rate, seconds):
        self.node, self.pid, self.rail = node, pid, rail
        self.size, self.rate, self.seconds = size, rate, seconds
        self.stalled = self.staged = self.lost = always(0)
        self.up = self.share = always(1)

    def slower(self, times, begin):
        usual = self.seconds
        self.seconds = lambda t: usual(t) * (times if t >= begin else 1)

    def wait_from(self, begin):
        usual = self.rate
        self.rate = lambda t: usual(t) if t < begin else 0
        self.stalled = lambda t: max(0, t - begin) * 60


def always(value):
    return lambda t: value


class Fleet:
    def __init__(self, name, minutes):
        self.name, self.minutes, self.series = name, minutes, {}

    def add(self, metric, labels, value):
        """`value(t)` of each minute; None where there is nothing to scrape."""
        text = ",".join(f'{k}="{v}"' for k, v in labels.items())
        values = (value(t) for t in range(0, self.minutes + 1, SCRAPED))
        self.series[f"{metric}{{{text}}}"] = " ".join("_" if v is None else f"{v:.9g}" for v in values)

    def counter(self, metric, labels, growth, lives=always(True)):
        total = 0.0

        def value(t):
            nonlocal total
            if not lives(t):
                return None
            total += growth(t)
            return total
        self.add(metric, labels, value)

    def job(self, name, ranks, begin=0, end=10 * DAY):
        def lives(t):
            return begin <= t < end
        for i, r in enumerate(ranks):
            other = ranks[(i + 1) % len(ranks)]
            process = {"node": r.node, "pid": r.pid}
            peer = {**process, "peer": f"{other.node} pid {other.pid} GPU0", "dir": "send"}
            rail = {**process, "rail": r.rail}
            # The machines are not quite alike, nor the minutes.
            messages = lambda t, r=r, i=i: r.rate(t) * STEP * (1 + 0.1 * ((t * 7 + i * 3) % 5))
            for exporter in "root", "user":
                self.add("twinpath_process_info",
                         {**process, "instance": exporter, "job": name, "program": "python3"},
                         lambda t: 1 if lives(t) else None)
            self.counter("twinpath_message_seconds_count", rail,
                         lambda t, m=messages: m(t) / 32, lives)
            self.counter("twinpath_message_seconds_sum", rail,
                         lambda t, r=r, m=messages: m(t) / 32 * r.seconds(t), lives)
            self.counter("twinpath_bytes_total", {**peer, "rail": r.rail},
                         lambda t, r=r, m=messages: m(t) * r.size(t), lives)
            if any(r.staged(t) for t in range(self.minutes)):
                self.counter("twinpath_staged_bytes_total", peer,
                             lambda t, r=r, m=messages: m(t) * r.size(t) * r.staged(t), lives)
            self.add("twinpath_stalled_seconds", peer,
                     lambda t, r=r: r.stalled(t) if lives(t) else None)
            self.add("twinpath_connections_lost", peer,
                     lambda t, r=r: r.lost(t) if lives(t) else None)
            self.add("twinpath_rail_up", rail, lambda t, r=r: r.up(t) if lives(t) else None)
            # Of two rails, as far as a process tells it: half is promised.
            self.add("twinpath_rail_share", {**peer, "rail": r.rail},
                     lambda t, r=r: r.share(t) / 2 if lives(t) else None)
            self.add("twinpath_rail_share_promised", {**peer, "rail": r.rail},
                     lambda t: 0.5 if lives(t) else None)

    def went_down(self, r, times):
        self.counter("twinpath_port_events_total",
                     {"node": r.node, "pid": r.pid, "rail": r.rail, "event": "down"}, times)

    def nic(self, node, hca, growth):
        self.counter("twinpath_nic_counter_total",
                     {"node": node, "hca": hca, "port": "1", "name": "packet_seq_err",
                      "kind": "retransmission"}, growth)

    def test(self, *fired):
        return {"name": self.name, "interval": f"{STEP}s",
                "input_series": [{"series": s, "values": v} for s, v in self.series.items()],
                "promql_expr_test": [
                    {"expr": FIRED, "eval_time": f"{self.minutes}m",
                     "exp_samples": [{"labels": "{%s}" % ",".join(f'{k}="{v}"' for k, v in f.items()),
                                      "value": 1} for f in fired]}]}


def training(nodes=4, first_pid=100):
    """8 MiB at a time over two rails a node; a checkpoint of four minutes in the hour, for which all
    wait for rank 0; and a phase with deeper queues, in which each message takes five times as long."""
    def phase(t):  # not at the same time in each hour
        return 5 if 20 <= t % 95 < 35 else 1
    ranks = [Rank(f"n{n}", first_pid + 2 * n + k, f"mlx5_{k}", always(8 * MIB),
                  lambda t: 0 if t % 60 >= 56 else 400, lambda t: 400e-6 * phase(t))
             for n in range(nodes) for k in range(2)]
    for r in ranks[1:]:
        r.stalled = lambda t: max(0, t % 60 - 55) * 60
    return ranks


def inference():
    """Small messages, on nodes of the training."""
    return [Rank(f"n{n}", 200 + n, "mlx5_0", always(8 * KIB), always(20000), always(12e-6))
            for n in range(2)]


def pipeline():
    """Stages with messages of their own: one large ones, or middling ones every other 90 minutes, two
    middling, one small."""
    ranks = [Rank(f"n{4 + n}", 300 + n, "mlx5_0", always(size), always(rate), always(seconds))
             for n, (size, rate, seconds) in enumerate(
                 [(0, 20, 0), (64 * KIB, 500, 25e-6), (64 * KIB, 500, 25e-6), (4 * KIB, 900, 9e-6)])]
    ranks[0].size = lambda t: 64 * KIB if t // 90 % 2 else 64 * MIB
    ranks[0].seconds = lambda t: 25e-6 if t // 90 % 2 else 3e-3
    return ranks


def alternating():
    """Another size every 20 minutes."""
    def big(t):
        return t // 20 % 2 == 0
    return [Rank(f"n{10 + n}", 400 + n, "mlx5_0", lambda t: 64 * MIB if big(t) else 64 * KIB,
                 lambda t: 20 if big(t) else 5000, lambda t: 3e-3 if big(t) else 20e-6)
            for n in range(4)]


def through_host_memory():
    ranks = [Rank(f"n{8 + n}", 500 + n, "mlx5_0", always(MIB), always(1000), always(300e-6))
             for n in range(2)]
    for r in ranks:
        r.staged = always(1)
    return ranks


def healthy():
    fleet = Fleet("a day of healthy jobs", DAY)
    fleet.job("a1", training())
    fleet.job("b2", inference())
    fleet.job("c3", pipeline())
    fleet.job("d4", through_host_memory())
    fleet.job("e5", alternating())
    for k in range(8):  # jobs that come and go, of two sizes
        size, seconds = (MIB, 60e-6) if k % 2 else (16 * KIB, 15e-6)
        fleet.job(f"f{k}", [Rank(f"n{8 + n}", 600 + 10 * k + n, "mlx5_1", always(size), always(2000),
                                 always(seconds)) for n in range(2)], 180 * k, 180 * k + 150)
    for n in range(4):  # now and then every fabric drops something
        fleet.nic(f"n{n}", "mlx5_0", lambda t, n=n: 25 if (t + 14 * n) % 50 == 0 else 0)
    fleet.went_down(Rank("n1", 102, "mlx5_0", 0, 0, 0), lambda t: t and t % 600 == 0)
    return fleet.test()


def slow_rail():
    fleet = Fleet("one rail of a job becomes slow", 180)
    ranks = training()
    ranks[5].slower(8, 80)
    fleet.job("a1", ranks)
    fleet.job("b2", inference())
    where = {"job": "a1", "node": "n2", "rail": "mlx5_1"}
    return fleet.test({"alertname": "TwinpathRailSlow", **where},
                      {"alertname": "TwinpathRailSlower", **where})


def slow_rail_of_little_use():
    """Small messages take less than the job's others even when they take six times as long."""
    fleet = Fleet("a rail with small messages becomes slow", 180)
    ranks = pipeline()
    ranks[3].slower(6, 80)
    fleet.job("c3", ranks)
    return fleet.test({"alertname": "TwinpathRailSlower", "job": "c3", "node": "n7", "rail": "mlx5_0"})


def bad_cable():
    fleet = Fleet("a cable drops packets", 180)
    fleet.job("a1", training())
    for n in range(4):
        fleet.nic(f"n{n}", "mlx5_1", lambda t, n=n: 30 * STEP if n == 1 and t > 60 else t % 7)
    return fleet.test({"alertname": "TwinpathPacketsLost", "node": "n1", "hca": "mlx5_1", "port": 1})


def staging_host():
    fleet = Fleet("one node of a job lost GPUDirect", 180)
    ranks = training()
    for r in ranks[6:]:
        r.staged = always(1)
    fleet.job("a1", ranks)
    fleet.job("d4", through_host_memory())
    return fleet.test({"alertname": "TwinpathNodeStages", "job": "a1", "node": "n3"})


def hung_rank():
    """All wait in a ring for one that does nothing any more."""
    fleet = Fleet("one rank hangs", 180)
    ranks = training()
    for r in ranks:
        r.wait_from(70)
    ranks[3].stalled = always(0)
    fleet.job("a1", ranks)
    fleet.job("b2", inference())
    # Only its neighbour in the ring waits for it.
    return fleet.test({"alertname": "TwinpathPeerStalled", "node": ranks[3].node, "pid": ranks[3].pid})


def different_operations():
    fleet = Fleet("ranks call different operations and wait for each other", 180)
    ranks = training()
    for r in ranks:
        r.wait_from(70)
    fleet.job("a1", ranks)
    return fleet.test({"alertname": "TwinpathJobStalled", "job": "a1"})


def broken_connections():
    fleet = Fleet("one process loses its connections", 180)
    ranks = training()
    ranks[3].lost = lambda t: 2 if t >= 80 else 0
    fleet.job("a1", ranks)
    fleet.job("b2", inference())
    return fleet.test({"alertname": "TwinpathConnectionsLost", "node": ranks[3].node, "pid": ranks[3].pid})


def dead_port():
    """It goes down once and stays down; a neighbour's goes down and up between two scrapes."""
    fleet = Fleet("a port goes down", 180)
    ranks = training()
    ranks[3].up = lambda t: t < 80
    for r in ranks[3], ranks[5]:
        fleet.went_down(r, lambda t: t == 80)
    fleet.job("a1", ranks)
    return fleet.test({"alertname": "TwinpathRailDown", "node": ranks[3].node, "rail": ranks[3].rail})


def flapping_port():
    """Down four times in a quarter of an hour, never when it is looked at; a neighbour's as often in
    three hours."""
    fleet = Fleet("a port flaps", 180)
    ranks = training()
    fleet.went_down(ranks[3], lambda t: t in (80, 84, 88, 92))
    fleet.went_down(ranks[5], lambda t: t in (20, 60, 100, 140))
    fleet.job("a1", ranks)
    return fleet.test({"alertname": "TwinpathRailFlapping", "node": ranks[3].node, "rail": ranks[3].rail})


def rail_behind():
    """It is given less of each message, so that messages take no longer; a neighbour a little less."""
    fleet = Fleet("a rail carries less than it promises", 180)
    ranks = training()
    ranks[3].share = lambda t: 0.3 if t >= 80 else 1
    ranks[2].share = lambda t: 1.7 if t >= 80 else 1
    ranks[5].share = always(0.8)
    fleet.job("a1", ranks)
    return fleet.test({"alertname": "TwinpathRailBehind", "node": ranks[3].node, "rail": ranks[3].rail})


def write(file):
    json.dump({"rule_files": ["alerts.yml"], "evaluation_interval": f"{STEP}s",
               "tests": [made() for made in (healthy, slow_rail, slow_rail_of_little_use, bad_cable,
                                             staging_host, hung_rank, different_operations,
                                             broken_connections, dead_port, flapping_port,
                                             rail_behind)]}, file)


if __name__ == "__main__":
    write(sys.stdout)
