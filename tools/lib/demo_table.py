#!/usr/bin/env python3
"""Tables of tools/demo.sh, 80 columns at most, out of the JSON of net_perf and coll_perf.

usage: demo_table.py FILE.json

Lines before the document (NCCL's log, where NCCL_DEBUG is set) are passed over.
"""
import json
import sys


def document(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    for at, line in enumerate(lines):
        if line.startswith("{"):
            return json.loads("\n".join(lines[at:]))
    raise ValueError("no JSON document in it")


def size(bytes_):
    for unit, letter in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if bytes_ >= unit and bytes_ % unit == 0:
            return f"{bytes_ // unit} {letter}"
    return f"{bytes_} B"


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def count(value):
    return "-" if value is None else str(int(value))


def latency(results):
    yield ["message", "median us", "p99 us", "smallest us", "wrong messages"]
    for r in results:
        yield [size(r["size"]), number(r["median_us"]), number(r["p99_us"]), number(r["min_us"]),
               count(r["wrong"])]


def bandwidth(results):
    yield ["message", "in flight", "GB/s", "of one thread's memcpy", "wrong messages"]
    for r in results:
        ratio = r.get("ratio_to_memcpy")
        yield [size(r["size"]), str(r["window"]), number(r["median_gbytes_per_s"]),
               "-" if ratio is None else f"{ratio:.2f}", count(r["wrong"])]


def collective(results):
    yield ["what", "buffer", "time us", "bus GB/s", "wrong elements"]
    for r in results:
        out = r["out_of_place"]
        both = [out["wrong"], (r.get("in_place") or {}).get("wrong", 0)]
        wrong = None if None in both else sum(both)
        yield [r["what"], size(r["bytes"]), number(out["time_us"]), number(out["busbw_gb_s"]),
               count(wrong)]


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        found = document(sys.argv[1])
        rows = {"coll_perf": collective}.get(
            found["tool"], latency if "median_us" in found["results"][0] else bandwidth)
        table = list(rows(found["results"]))
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"demo_table.py: {sys.argv[1]}: {error!r}", file=sys.stderr)
        return 1
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        print("    " + "   ".join(cells).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
