#!/usr/bin/env python3
"""Writes the Grafana dashboard of what twinpath-exporter serves to standard output.

  tools/monitoring/dashboard.py > dashboard.json

A build does this and installs the file.  PANELS is the place to change: a line a panel.  Widths are of Grafana's 24 columns.
"""
import json
import sys

# Grafana 9 and later read it; it is not raised with every release of theirs.
SCHEMA = 37
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "$__rate_interval"
NODE = 'node=~"$node"'


def rate(metric, more="", by="node"):
    labels = NODE + ("," + more if more else "")
    return f"sum by ({by}) (rate({metric}{{{labels}}}[{RATE}]))"


def quantile(part):
    return (f"histogram_quantile({part}, sum by (node, rail, le) "
            f"(rate(twinpath_message_seconds_bucket{{{NODE}}}[{RATE}])))")


# Rows of panels: (kind, width, title, what it says, unit, [(query, legend)...])
PANELS = [
    ("What jobs are waiting for", [
        ("stat", 4, "Processes", "Processes that have loaded the plugin.", "short",
         [(f"count(twinpath_process_info{{{NODE}}})", "")]),
        ("stat", 4, "Longest stall", "The longest time that a pending request has made no progress.",
         "s", [(f"max(twinpath_stalled_seconds{{{NODE}}})", "")]),
        ("stat", 4, "Ports down", "Ports that went down and have not come back.", "short",
         [(f"count(min by (node, rail) (twinpath_rail_up{{{NODE}}}) == 0) or vector(0)", "")]),
        ("stat", 4, "Broken connections", "Connections that broke and are not closed yet.", "short",
         [(f"sum(twinpath_connections_lost{{{NODE}}})", "")]),
        ("stat", 4, "Failovers, last hour", "Connections that moved to another port, or back.",
         "short", [(f"(sum(increase(twinpath_failovers_total{{{NODE}}}[1h])) or vector(0)) + "
                    f"(sum(increase(twinpath_gin_failovers_total{{{NODE}}}[1h])) or vector(0)) + "
                    f"(sum(increase(twinpath_rma_failovers_total{{{NODE}}}[1h])) or vector(0))", "")]),
        ("stat", 4, "Failed transfers, last hour", "Transfers that ended in an error.", "short",
         [(f"sum(increase(twinpath_errors_total{{{NODE}}}[1h]))", "")]),
        ("timeseries", 12, "Waiting time by cause",
         "Share of an average connection's time. peer_cts and peer_data: the peer. network: the "
         "adapter's acknowledgement. flush and gpu_copy: this host. slots: too few channels.",
         "percentunit",
         [(rate("twinpath_wait_seconds_total", by="for")
           + f" / ignoring (for) group_left () sum(twinpath_connections{{{NODE}}})", "{{for}}")]),
        ("timeseries", 12, "Peers most waited for",
         "Seconds of waiting per second, summed over connections; the ten largest. A peer that waits "
         "itself is not the cause: twinpath-top follows the chain.", "short",
         [("topk(10, " + rate("twinpath_wait_seconds_total", 'for=~"peer_cts|peer_data"', "peer")
           + ")", "{{peer}}")]),
        ("table", 24, "Stalled right now", "Requests without progress for more than a second.", "s",
         [(f"topk(20, max by (node, pid, rank, comm_name, dir, peer, device) "
           f"(twinpath_stalled_seconds{{{NODE}}})) > 1", "")]),
    ]),
    ("Rails", [
        ("timeseries", 12, "Throughput by rail", "Bytes per second, by direction.", "Bps",
         [(rate("twinpath_bytes_total", by="node, rail, dir"), "{{node}} {{rail}} {{dir}}")]),
        ("timeseries", 12, "Message latency by rail",
         "From posting to acknowledgement: median and 99th percentile. Compare rails of one job only, "
         "as larger messages take longer. The alert TwinpathRailSlow does.", "s",
         [(quantile(0.5), "{{node}} {{rail}} p50"), (quantile(0.99), "{{node}} {{rail}} p99")]),
        ("timeseries", 8, "Rail share relative to port speed",
         "For messages split over several rails. Below 100 % the rail is slower than its port's speed "
         "promises.", "percentunit",
         [(f"min by (node, rail) (twinpath_rail_share{{{NODE}}} / "
           f"twinpath_rail_share_promised{{{NODE}}})", "{{node}} {{rail}}")]),
        ("timeseries", 8, "Retransmissions",
         "Kernel counters per second: retransmissions, gaps, exhausted retries.", "cps",
         [(rate("twinpath_nic_counter_total", 'kind=~"retransmission|out_of_sequence|retry_exceeded"',
                "node, hca, port, name"), "{{node}} {{hca}}:{{port}} {{name}}")]),
        ("timeseries", 8, "Congestion and link errors",
         "Kernel counters per second: congestion, missing receive buffers, link errors.",
         "cps",
         [(rate("twinpath_nic_counter_total", 'kind=~"congestion|rnr|link"',
                "node, hca, port, name"), "{{node}} {{hca}}:{{port}} {{name}}")]),
        ("timeseries", 12, "Port events", "Every process of a node counts the same events.", "short",
         [(f"max by (node, rail, event) (increase(twinpath_port_events_total{{{NODE}}}"
           f"[{RATE}]))", "{{node}} {{rail}} {{event}}")]),
        ("timeseries", 12, "Time lost to failover",
         "Seconds per second that connections stood still while moving to another port.",
         "s", [(rate("twinpath_failover_seconds_total"), "{{node}}")]),
    ]),
    ("Processes", [
        ("timeseries", 8, "Message rate", "Messages per second, by direction.", "cps",
         [(rate("twinpath_messages_total", by="node, dir"), "{{node}} {{dir}}")]),
        ("timeseries", 8, "Staged through host memory",
         "GPU data copied through host memory because the adapter does not reach it.", "Bps",
         [(rate("twinpath_staged_bytes_total"), "{{node}}")]),
        ("timeseries", 8, "Memory registrations", "New registrations per second. Many cost time.", "cps",
         [(rate("twinpath_mr_registrations_total"), "{{node}}")]),
    ]),
    ("GPU-initiated traffic (GIN)", [
        ("timeseries", 8, "Work requests by type", "Taken from kernels' queues, per second.", "cps",
         [(rate("twinpath_gin_operations_total", by="node, op"), "{{node}} {{op}}")]),
        ("timeseries", 8, "Busiest engine",
         "Share of time that a node's busiest engine works. Near 100 % the CPU is the limit.",
         "percentunit",
         [(f"max by (node) (rate(twinpath_gin_engine_busy_seconds_total{{{NODE}}}[{RATE}]))",
           "{{node}}")]),
        ("timeseries", 8, "Failed queues and released kernels", "Total since the processes started.",
         "short", [(f"sum by (node) (twinpath_gin_failed_queues_total{{{NODE}}})", "{{node}} failed"),
                   (f"sum by (node) (twinpath_gin_released_queues_total{{{NODE}}})",
                    "{{node}} released")]),
    ]),
]


def target(number, query, legend, table):
    made = {"refId": "ABCD"[number], "datasource": SOURCE, "expr": query, "legendFormat": legend}
    return {**made, "instant": True, "range": False, "format": "table"} if table else made


def options(kind):
    if kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"}}
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    return {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]}


def panel(number, at, spec):
    kind, _, title, about, unit, queries = spec
    made = {"id": number, "type": kind, "title": title, "description": about, "gridPos": at,
            "datasource": SOURCE,
            "targets": [target(n, query, legend, kind == "table")
                        for n, (query, legend) in enumerate(queries)],
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "options": options(kind)}
    if kind == "table":
        made["transformations"] = [{"id": "organize",
                                    "options": {"excludeByName": {"Time": True}}}]
    return made


def panels():
    made, y = [], 0
    for title, row in PANELS:
        made.append({"id": len(made) + 1, "type": "row", "title": title, "collapsed": False,
                     "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        y, x, height = y + 1, 0, 0
        for spec in row:
            if x + spec[1] > 24:
                y, x, height = y + height, 0, 0
            height = max(height, 4 if spec[0] == "stat" else 8)
            made.append(panel(len(made) + 1, {"h": height, "w": spec[1], "x": x, "y": y}, spec))
            x += spec[1]
        y += height
    return made


def variables():
    return [{"name": "datasource", "label": "Prometheus", "type": "datasource",
             "query": "prometheus", "hide": 0},
            {"name": "node", "label": "Node", "type": "query", "datasource": SOURCE,
             "query": {"query": "label_values(twinpath_process_info, node)", "refId": "node"},
             "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
             "current": {"text": "All", "value": "$__all"}, "hide": 0}]


def dashboard():
    return {"title": "Twinpath", "uid": "twinpath", "tags": ["nccl", "twinpath"],
            "schemaVersion": SCHEMA, "version": 1, "editable": True, "timezone": "browser",
            "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "graphTooltip": 1,
            "annotations": {"list": []}, "templating": {"list": variables()}, "panels": panels()}


def main():
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    print(json.dumps(dashboard(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
