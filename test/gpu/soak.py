#!/usr/bin/env python3
"""Does a long run of CUDA graphs over registered buffers leave anything behind?

coll_perf plays all collectives in one communicator, from 4 bytes up, launched as graphs, on buffers that
NCCL registers, over and over, with a limit of 1024 open files.  Every rank and its copy process are
looked at each second: open files, threads, resident memory.  What the first third of the time has not
seen may not come later (memory: --slack MiB), and no element may be wrong.

    soak.py 600 --plugin libnccl-net.so                      # ten minutes, all GPUs
    soak.py 180 --plugin libnccl-net.so -- --gpus 0,1 --cuda-malloc
    soak.py 20 --plugin libnccl-net.so --cpu                 # this script's own test: no GPU, no graphs

Exit status: 0 all flat, 1 not, 2 bad option, 3 coll_perf does not run.
"""
import argparse
import collections
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time

FILES = 1024
PASSES = 2000  # more than any time has room for
KINDS = ("files", "threads", "MiB")


def processes():
    """Parent and name of each process that can be read."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, rest = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue  # it has just ended
        found[int(entry.name)] = (int(rest.split()[1]), name)
    return found


def family(root, before):
    """The ranks below `root`, and copy processes that were not there before: those have no parent."""
    now = processes()
    members = {root}
    while more := {p for p, (parent, _) in now.items() if parent in members} - members:
        members |= more
    members |= {p for p, (_, name) in now.items() if name.startswith("twinpath-copie") and p not in before}
    return {p: now[p][1] for p in members if p in now}


def look(pid):
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    if "VmRSS" not in status:
        raise OSError("it has ended")
    return (len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0]) // 1024)


class Seen:
    """Of one process: the most of each kind, in the first third of the time and after it."""

    def __init__(self):
        self.first, self.later = [0, 0, 0], [0, 0, 0]

    def add(self, values, late):
        most = self.later if late else self.first
        most[:] = map(max, most, values)

    def grown(self, slack):
        room = (0, 0, slack)
        return [f"{kind}: {a} became {b}" for kind, a, b, more in zip(KINDS, self.first, self.later, room) if b > a + more]


def wrong_lines(output):
    """Rows of coll_perf's table with another number of wrong elements than 0."""
    rows = [line.split() for line in output.splitlines() if line.strip()[:1].isdigit()]
    return [" ".join(row) for row in rows if any(row[i] not in ("0", "N/A") for i in (8, 12) if i < len(row))], len(rows)


def command(options):
    args = [options.coll_perf, "--plugin", options.plugin, "--timeout", "120"]
    if options.cpu:
        args += ["--cpu", "2", "-b", "4", "-e", "64k", "-d", ",".join(["float"] * PASSES)]
    else:
        args += ["--via-plugin", "--graph", "--register", "-b", "4", "-e", "16m", "-f", "4", "-c", ",".join(["all"] * PASSES)]
    return args + options.more


def run(options, output):
    before = processes()
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    program = subprocess.Popen(command(options), stdout=output, stderr=subprocess.STDOUT, preexec_fn=limit,
                               start_new_session=True)
    seen, names = collections.defaultdict(Seen), {}
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < options.seconds and program.poll() is None:
        for pid, name in family(program.pid, before).items():
            try:
                seen[pid].add(look(pid), passed > options.seconds / 3)
                names[pid] = name
            except OSError:
                pass  # it has just ended
        time.sleep(1)
    early = program.poll()
    if early is None:
        os.killpg(program.pid, signal.SIGTERM)
        program.wait()
    return early, seen, names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--plugin", default=os.environ.get("NCCL_NET_PLUGIN"), help="libnccl-net.so [$NCCL_NET_PLUGIN]")
    parser.add_argument("--coll-perf", default="build/tools/coll_perf/coll_perf")
    parser.add_argument("--slack", type=int, default=64, help="MiB by which a process may grow [64]")
    parser.add_argument("--cpu", action="store_true", help="on host memory, without graphs")
    parser.usage = "%(prog)s SECONDS [options] [-- coll_perf's options]"
    # By hand: argparse takes what follows "--" only where SECONDS stands right before it.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    options.more = sys.argv[end + 1:]
    if not options.plugin:
        parser.error("--plugin is missing")
    with tempfile.TemporaryFile("w+") as output:
        early, seen, names = run(options, output)
        output.seek(0)
        text = output.read()
    wrong, rows = wrong_lines(text)
    if early is not None or rows == 0:
        print(text[-4000:])
        print(f"coll_perf ended by itself with {early} after {rows} lines")
        return 3
    failed = bool(wrong)
    for row in wrong[:10]:
        print("wrong:", row)
    for pid, of in sorted(seen.items()):
        if not any(of.later):
            continue  # a launcher's helper that has ended
        grown = of.grown(options.slack)
        failed |= bool(grown)
        values = ", ".join(f"{a} -> {b} {kind}" for kind, a, b in zip(KINDS, of.first, of.later))
        print(f"{names[pid]:16} {pid:8}  {values}  {'GROWN: ' + '; '.join(grown) if grown else 'flat'}")
    warnings = [line for line in text.splitlines() if " WARN " in line]
    print(f"{rows} lines of results in {options.seconds:.0f} s, {len(wrong)} wrong, {len(warnings)} warnings")
    for line in warnings[:5]:
        print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
