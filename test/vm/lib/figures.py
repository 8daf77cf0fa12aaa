"""Part of figures: figures.py LINES UNIT JSON.  Makes tables of the rounds' lines "KEY NAME VALUE"."""
import json
import statistics
import sys

ALONE = ["rate_8", "rate_64", "rate_4k", "rate_64k", "group8_64", "group8_4k", "bandwidth", "latency"]
BESIDE = [f"{loop}_{size}" for loop in ("window", "poll") for size in ("8", "64", "4k", "64k")]
BESIDE += ["window_by8_64", "window_by8_4k", "group_by8_64", "group_by8_4k"]
PERFTEST = {"bandwidth": "ib_write_bw", "latency": "ib_write_lat"}


def read(path):
    """{key: {name: [a value a round]}}"""
    rounds = {}
    for line in open(path):
        key, name, value = line.split()
        rounds.setdefault(key, {}).setdefault(name, []).append(float(value))
    return rounds


def spread(values):
    return f"({min(values):.4g} to {max(values):.4g})"


def alone(rounds):
    for key in ALONE:
        for name, values in rounds.get(key, {}).items():
            unit = {"bandwidth": "GB/s", "latency": "us"}.get(key, "messages/s")
            digits = {"GB/s": 4, "us": 1}.get(unit, 0)
            shown = key if name == "ours" else PERFTEST[key]
            print(f"{shown:14} {statistics.median(values):12.{digits}f} {unit}"
                  f"   {len(values)} rounds {spread(values)}")
        names = rounds.get(key, {})
        if len(names) == 2:
            ratio = statistics.median(a / b for a, b in zip(names["ours"], names["perftest"]))
            print(f"{key} / {PERFTEST[key]}: median of the rounds' ratios {ratio:.2f}")


def beside(rounds, unit):
    names = list(dict.fromkeys(name for row in rounds.values() for name in row))
    others = [name for name in names if name != "ours"]
    what = "instructions per message" if unit == "instructions" else "messages/s"
    print(f"{what}, medians; then how many times others' messages/s ours are, round by round")
    print(f"{'':14}" + "".join(f"{n:>10}" for n in names) + "".join(f"{'/' + n:>24}" for n in others))
    for key in BESIDE:
        row = rounds.get(key, {})
        line = f"{key:14}"
        for name in names:
            line += f"{statistics.median(row[name]):10.0f}" if name in row else f"{'failed':>10}"
        for name in others:
            if name not in row or "ours" not in row:
                continue
            ratios = [a / b for a, b in zip(row["ours"], row[name])]
            if unit == "instructions":
                ratios = [1 / r for r in ratios]
            line += f"{statistics.median(ratios):8.2f} {spread(ratios):>15}"
        print(line)
    print("\npackets per message")
    for key in BESIDE:
        row = rounds.get(f"packets_{key}", {})
        print(f"{key:14}" + "".join(
            f"{statistics.median(row[n]):10.2f}" if n in row else f"{'failed':>10}" for n in names))


def main():
    path, unit, out = sys.argv[1:]
    rounds = read(path)
    # perftest counts MiB, net_perf 1e9 bytes.
    theirs = rounds.get("bandwidth", {}).get("perftest", [])
    theirs[:] = [v * 2**20 / 1e9 for v in theirs]
    if unit == "instructions":
        for key, row in rounds.items():
            if not key.startswith("packets_"):
                row.update({name: [1e9 / v for v in values] for name, values in row.items()})
    several = any(name not in ("ours", "perftest") for row in rounds.values() for name in row)
    if several:
        beside(rounds, unit)
    else:
        alone(rounds)
    medians = {key: {name: statistics.median(v) for name, v in row.items()}
               for key, row in rounds.items()}
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"medians": medians, "rounds": rounds}, file, indent=2)
    every = set().union(*rounds.values()) if several else {"ours"}
    missing = [f"{key} of {name}" for key in (BESIDE if several else ALONE)
               for name in every | ({"perftest"} if key in PERFTEST and not several else set())
               if name not in rounds.get(key, {})]
    if missing:
        sys.exit("figures: nothing measured for " + ", ".join(sorted(missing)))


if __name__ == "__main__":
    main()
