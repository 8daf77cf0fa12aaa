#!/usr/bin/env python3
"""The part of `behind` that needs no GPU: what it makes of ranks that end well, hang, crash, have
wrong data, or never get ready.

usage: parent_test.py BEHIND        (with --cases: plays a process with ranks)

BEHAVE in the environment has a word for a case: "sync@4:hang", "*" for setting up.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time


def play(argv):
    """A child as child.h describes it."""
    def option(name, default=None):
        return argv[argv.index(name) + 1] if name in argv else default

    def say(**line):
        os.write(3, (json.dumps(line) + "\n").encode())

    if "--count" in argv:
        os.write(3, b"2\n")
        return
    ranks = [int(option("--rank"))] if "--rank" in argv else range(int(option("--gpus")))
    behave = dict(w.rsplit(":", 1) for w in os.environ["BEHAVE"].split(",") if w)
    with open(os.environ["STARTED"], "a") as out:
        out.write(f"{os.getpid()} {' '.join(argv)}\n")

    def do(word, case):
        if word == "hang":
            say(what="stuck", rank=ranks[0], case=case, round=3, step="cudaFree")
            time.sleep(1000)
        elif word == "silent":  # not even the watch of the rank runs
            time.sleep(1000)
        elif word == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif word == "error":
            say(what="error", rank=ranks[0], case=case, text="cudaMalloc: no")
            sys.exit(1)

    print("NCCL's own words")
    do(behave.get("*"), "")
    for rank in ranks:
        say(what="ready", rank=rank)
    for case in option("--cases").split(","):
        word = behave.get(case)
        do(word, case)
        for rank in ranks:
            line = dict(what="end", rank=rank, case=case, call_us=[1.0, 2.0, 3.0],
                        wrong=7 if word == "wrong" and rank == 1 else 0)
            if word == "skip":
                line["skipped"] = "of no use here"
            say(**line)


def run(behind, behave, *more, layout="group", calls="sync,graph", limit="2"):
    with tempfile.TemporaryDirectory() as folder:
        started = pathlib.Path(folder, "started")
        started.touch()
        done = subprocess.run(
            [behind, "--child", os.path.abspath(__file__), "--json", "--case", calls, "--sizes",
             "4,64k", "--layout", layout, "--limit", limit, "--setup-limit", "30", *more],
            env={**os.environ, "BEHAVE": behave, "STARTED": str(started), "TMPDIR": folder},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        lines = started.read_text().splitlines()
        left = [p.name for p in pathlib.Path(folder).iterdir() if p != started]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        pid = int(line.split()[0])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        raise AssertionError(f"process {pid} lives on")
    assert not left, left
    return done.returncode, rows, lines


def verdicts(rows):
    return [(r["case"], r["bytes"], r["verdict"]) for r in rows]


CASES = [("sync", 4), ("sync", 65536), ("graph", 4), ("graph", 65536)]


def expect(rows, *words):
    want = [(c, b, w) for (c, b), w in zip(CASES, words)]
    assert verdicts(rows) == want, (verdicts(rows), want)


def main(behind):
    for layout, processes in (("group", 1), ("processes", 2)):
        code, rows, started = run(behind, "", layout=layout)
        expect(rows, "ok", "ok", "ok", "ok")
        assert code == 0 and len(started) == processes, (code, started)
        assert rows[0]["gpus"] == 2 and rows[0]["median_us"] == 2 and rows[0]["max_us"] == 3, rows

        # One that hangs is named, and the others get processes of their own.
        code, rows, started = run(behind, "sync@65536:hang", layout=layout)
        expect(rows, "ok", "HUNG", "ok", "ok")
        assert code == 1 and len(started) == 2 * processes, (code, started)
        assert "rank 0, round 3: cudaFree" in rows[1]["detail"], rows[1]

    for word, verdict, detail in (("crash", "FAILED", "Segmentation fault"),
                                  ("error", "FAILED", "rank 0: cudaMalloc: no")):
        code, rows, _ = run(behind, f"graph@4:{word}")
        expect(rows, "ok", "ok", verdict, "ok")
        assert code == 1 and detail in rows[2]["detail"], (code, rows[2])

    code, rows, started = run(behind, "graph@65536:wrong,sync@4:skip")
    expect(rows, "skipped", "ok", "ok", "WRONG")
    assert code == 1 and rows[3]["wrong"] == 7 and len(started) == 1, rows[3]
    assert rows[0]["detail"] == "of no use here", rows[0]

    # Setting up is tried once, not once a case.
    code, rows, started = run(behind, "*:error")
    expect(rows, *["not run"] * 4)
    assert code == 1 and len(started) == 1 and "cudaMalloc: no" in rows[0]["detail"], rows[0]

    # A rank that says nothing at all is given more than the limit, but not for ever.
    code, rows, _ = run(behind, "sync@4:silent", calls="sync")
    assert verdicts(rows) == [("sync", 4, "HUNG"), ("sync", 65536, "ok")], rows
    assert code == 1 and rows[0]["detail"] == "no word from the ranks", (code, rows)

    code, rows, started = run(behind, "", "--fresh")
    expect(rows, "ok", "ok", "ok", "ok")
    assert code == 0 and len(started) == 4, started
    print("ok")


if __name__ == "__main__":
    if "--cases" in sys.argv or "--count" in sys.argv:
        play(sys.argv)
    else:
        main(os.path.abspath(sys.argv[1]))
