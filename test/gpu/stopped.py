#!/usr/bin/env python3
"""Do kernels go on communicating while no thread of their process runs but the soft HCA's?

gda_perf's kernels (tools/gda_perf) play signal or put and signal with each other through a process
all of whose threads are stopped by ptrace, both ranks' and NCCL's and CUDA's among them.  Only the
threads that are the software adapter, and the process that copies for it, go on: on a real machine
that is hardware.  Times are taken by the GPU: had the kernels waited for a thread, one round trip would
have lasted as long as the stop.

    stopped.py --gda-perf build/tools/gda_perf/gda_perf --nccl libnccl.so.2 --plugin libnccl-net.so
    stopped.py --modes gda --tests signal,pingpong,counter --stop 5 --json

Mode gda must go on.  gda-cpu and proxy need a thread of ours for each request, so they must stand
still: if they did not, the stop would prove nothing.  Needs two GPUs, and leave to trace a child.
Exit status: 0 all as it must be, 1 not, 2 bad option, 3 gda_perf does not run.
"""
import argparse
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

# The adapter's model: its engine, what reads an mlx5 adapter's queues, its helpers in copying host
# memory, its ways to the copy process.
ADAPTER = re.compile(r"twinpath-(hca|mlx5|copy)|tp-(give|copy)-\d+")
MUST_GO_ON = {"gda": True, "gda-cpu": False, "proxy": False}

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # <linux/ptrace.h>
WALL = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.ptrace.restype = ctypes.c_long


def ptrace(request, thread):
    if libc.ptrace(request, thread, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace of thread {thread}: {os.strerror(ctypes.get_errno())}")


def threads(pid):
    """Name of each thread."""
    names = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            names[int(task.name)] = (task / "comm").read_text().strip()
        except OSError:
            pass  # it has just ended
    return names


def processor_ns(pid, thread):
    return int(pathlib.Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])


class Stop:
    """All threads of a child that are not the adapter's, stopped; also those that come meanwhile."""

    def __init__(self, pid):
        self.pid = pid
        self.held = {}
        while True:
            found = {t: n for t, n in threads(pid).items() if t not in self.held and not ADAPTER.fullmatch(n)}
            if not found:
                break
            for thread, name in found.items():
                try:
                    ptrace(SEIZE, thread)
                    ptrace(INTERRUPT, thread)
                except ProcessLookupError:
                    continue
                os.waitpid(thread, WALL)
                self.held[thread] = name
        self.spent = {t: processor_ns(pid, t) for t in self.held}

    def end(self):
        """Nanoseconds of processor that the stopped threads used meanwhile."""
        used = sum(processor_ns(self.pid, t) - before for t, before in self.spent.items())
        for thread in self.held:
            ptrace(DETACH, thread)
        return used


def start(options, mode, test, rounds, document):
    env = dict(os.environ, TWINPATH_MODE=mode)
    env.setdefault("TWINPATH_FABRIC", "soft")
    command = [options.gda_perf, "-t", test, "-b", "8", "-e", "8", "-n", str(rounds), "--json", document,
               "--wait", str(options.stop * 3 + 10), "--timeout", str(options.limit)]
    for name in ("nccl", "plugin"):
        if getattr(options, name):
            command += [f"--{name}", getattr(options, name)]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL if options.quiet else sys.stderr)


def row(process, document, limit):
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise RuntimeError(f"gda_perf did not end within {limit} s") from None
    if status != 0:
        raise RuntimeError(f"gda_perf ended with status {status}")
    text = json.loads(pathlib.Path(document).read_text())
    return text["results"][0]


def one(options, mode, test, scratch):
    document = str(scratch / f"{mode}-{test}.json")
    began = time.monotonic()
    free = row(start(options, mode, test, options.short, document), document, options.limit)
    setting_up = time.monotonic() - began
    # The kernels run for more than twice the stop, which begins when a fifth of that is over.
    rounds = max(options.short, int(options.stop * 2.5e6 / free["us"]["mean"]))
    process = start(options, mode, test, rounds, document)
    time.sleep(setting_up + options.stop / 2)
    stop = Stop(process.pid)
    left = sorted(n for t, n in threads(process.pid).items() if t not in stop.held)
    stopped = time.monotonic()
    time.sleep(options.stop)
    used = stop.end()
    stopped = time.monotonic() - stopped
    got = row(process, document, options.limit)
    # What the host waited for beyond the kernels' own time was not in the stop's part of it.
    kernels = got["us"]["mean"] * rounds / 1e6
    within = min(stopped, stopped - max(0.0, got["wall_s"] - kernels))
    longest = got["us"]["max"] / 1e6
    went_on = longest < stopped / 4
    must = MUST_GO_ON[mode]
    right = got["wrong"] == 0 and within > stopped * 0.75 and used == 0 and went_on == must
    right = right and (must or longest > stopped * 0.75)
    return {"mode": mode, "test": test, "right": right, "went_on": went_on, "rounds": rounds,
            "stopped_s": round(stopped, 3), "within_kernels_s": round(within, 3),
            "threads_stopped": len(stop.held), "threads_left": left, "stopped_threads_cpu_us": used // 1000,
            "us_free": free["us"], "us": got["us"], "wrong": got["wrong"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gda-perf", required=True, metavar="PATH")
    parser.add_argument("--nccl", metavar="PATH", help="the NCCL library (default: the loader's)")
    parser.add_argument("--plugin", metavar="PATH", help="the plugin (default: gda_perf's)")
    parser.add_argument("--modes", default="gda,gda-cpu,proxy")
    parser.add_argument("--tests", default="signal,pingpong")
    parser.add_argument("--stop", type=float, default=4, metavar="SECONDS")
    parser.add_argument("--short", type=int, default=2000, metavar="ROUNDS", help="of the run without a stop")
    parser.add_argument("--limit", type=int, default=120, metavar="SECONDS", help="for one run of gda_perf")
    parser.add_argument("--quiet", action="store_true", help="without gda_perf's own output")
    parser.add_argument("--json", action="store_true", help="a JSON line for each run")
    options = parser.parse_args()
    unknown = set(options.modes.split(",")) - set(MUST_GO_ON)
    if unknown:
        parser.error(f"no such mode: {', '.join(sorted(unknown))}")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for mode in options.modes.split(","):
            for test in options.tests.split(","):
                try:
                    result = one(options, mode, test, pathlib.Path(folder))
                except (RuntimeError, OSError) as error:
                    print(f"stopped.py: {mode}, {test}: {error}", file=sys.stderr)
                    return 3
                good = good and result["right"]
                if options.json:
                    print(json.dumps(result), flush=True)
                    continue
                print(f"{'ok' if result['right'] else 'FAILED'}: {mode}, {test}: {result['threads_stopped']} threads "
                      f"stopped for {result['stopped_s']} s, of which kernels ran {result['within_kernels_s']} s; "
                      f"left: {', '.join(result['threads_left'])}; {result['rounds']} round trips, median "
                      f"{result['us']['median']:.1f} us ({result['us_free']['median']:.1f} without a stop), longest "
                      f"{result['us']['max'] / 1e3:.1f} ms: "
                      f"{'they went on' if result['went_on'] else 'they stood still'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
