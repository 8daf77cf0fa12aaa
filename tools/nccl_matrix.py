#!/usr/bin/env python3
"""Runs programs over the plugin with several versions of NCCL, and makes a table of what held.

    tools/nccl_matrix.py --nccl ~/nccl                      folders of versions below it, coll_perf
    tools/nccl_matrix.py --nccl nccl-2.27.7 --nccl nccl-2.31.2 --types float,bf16 --gpus 2
    tools/nccl_matrix.py --nccl ~/nccl --nccl-tests tests --nccl-tests 2.31.2=tests-2.31.2
    tools/nccl_matrix.py --results matrix.jsonl --update test/COMPATIBILITY.md     only the table

A folder of NCCL holds libnccl.so.2, itself or in lib, lib64, build/lib or nvidia/nccl/lib; else each
folder in it may.  Programs:

 - coll_perf of this project (any NCCL from 2.19 on): all collectives, every element checked, with a
   process a GPU and with a thread a GPU;
 - nccl-tests, where --nccl-tests names a folder of built programs: one process, and one a GPU
   where --mpirun says how these are started.  A folder that was built with the headers of one
   version is given as VERSION=FOLDER; only with that version its kernels use GIN (-D 3, -D 4),
   from 2.28.7 on.

Each run gets TWINPATH_FABRIC=soft, NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 where the environment
says nothing else, and NCCL_NET with the plugin's name, so that NCCL fails rather than go on
without it.  A cell passes when the program ended well, counted no wrong element, and was run by
the NCCL of its column.  It stays empty when it was not run; a run that takes longer than --limit
seconds is killed and has failed.

--results FILE keeps a JSON line for each cell; with --resume, cells that it has are not run again,
so a matrix can be run in pieces.  The last line of a cell counts.

Exit status: 0 all right, 1 something failed, 2 bad option or nothing to do.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "lib"))
import report  # noqa: E402

LIBRARY_PLACES = ("", "lib", "lib64", "build/lib", "nvidia/nccl/lib")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv", "alltoall")
GIN_SINCE = (2, 28, 7)


def version_key(text):
    return tuple(int(n) for n in re.findall(r"\d+", text))


def text_of(number):
    """22809 -> 2.28.9, as NCCL counts from 2.9 on."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def ask_version(library):
    """The version that a library tells, or None.  Asked of another process: opening a library that
    is not what it seems may end it."""
    code = ("import ctypes, sys; v = ctypes.c_int(); "
            "ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(v.value)")
    try:
        done = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True,
                              text=True, timeout=60)
        return text_of(int(done.stdout)) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError):
        return None


def library_in(folder):
    if folder.is_file():
        return folder
    for place in LIBRARY_PLACES:
        for name in ("libnccl.so.2", "libnccl.so"):
            if (folder / place / name).is_file():
                return folder / place / name
    return None


def find_versions(folders):
    """{version: library}, oldest first; complains of folders that have none."""
    found = {}
    for folder in folders:
        places = [folder] if library_in(folder) or not folder.is_dir() else sorted(folder.iterdir())
        libraries = [lib for lib in map(library_in, places) if lib]
        if not libraries:
            sys.exit(f"{folder}: no libnccl.so.2 there, nor one folder below")
        for library in libraries:
            version = ask_version(library)
            if version is None:
                print(f"# {library} does not tell its version and is left out", file=sys.stderr)
            elif version in found and found[version] != library:
                print(f"# {library} is NCCL {version}, as {found[version]}: left out",
                      file=sys.stderr)
            else:
                found[version] = library
    return dict(sorted(found.items(), key=lambda item: version_key(item[0])))


def plugin_name(plugin):
    """The name in the plugin's table, which is what NCCL_NET compares."""
    code = ("import ctypes, sys; "
            "print(ctypes.c_char_p.in_dll(ctypes.CDLL(sys.argv[1]), 'ncclNetPlugin_v8')"
            ".value.decode())")
    done = subprocess.run([sys.executable, "-c", code, str(plugin)], capture_output=True, text=True,
                          timeout=60)
    if done.returncode != 0:
        sys.exit(f"{plugin}: not a net plugin: {(done.stderr.splitlines() or ['?'])[-1]}")
    return done.stdout.strip()


class Verdict:
    def __init__(self, passed=0, failed=0, detail=""):
        self.passed, self.failed, self.detail = passed, failed, detail


def last_line(*texts):
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no word"


def judge_coll_perf(done, version):
    try:
        document = json.loads(done.stdout)
        results = document["results"]
    except (ValueError, KeyError):
        return Verdict(0, 1, f"exit {done.returncode}: {last_line(done.stdout, done.stderr)}")
    ran = next((m[1] for m in (re.search(r"\bNCCL (\d+\.\d+\.\d+)", note)
                               for note in document.get("notes", [])) if m), "?")
    if ran != version:
        return Verdict(0, 1, f"it was run by NCCL {ran}")
    if results and "scenario" in results[0]:
        bad = [r["detail"] for r in results if not r["passed"]]
        return Verdict(len(results) - len(bad), len(bad), "; ".join(bad))
    measured = [(r, r[how]) for r in results for how in ("out_of_place", "in_place") if r[how]]
    unchecked = [m for _, m in measured if m["wrong"] is None]
    wrong = [(r, m) for r, m in measured if m["wrong"]]
    if unchecked or not measured:
        return Verdict(0, 1, "nothing was checked")
    detail = "; ".join(f"{r['what']} {r['type']} {r['bytes']} B: {m['wrong']} wrong"
                       for r, m in wrong[:3])
    if done.returncode != 0 and not wrong:
        return Verdict(len(measured), 1, f"exit {done.returncode}: {last_line(done.stderr)}")
    return Verdict(len(measured) - len(wrong), len(wrong), detail)


def judge_nccl_tests(done, version):
    """Lines of nccl-tests begin with size and count; #wrong is the 9th and, in place, 13th word."""
    ran = re.search(r"NCCL version (\d+\.\d+\.\d+)", done.stdout)
    passed = failed = 0
    detail = ""
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) < 9 or not (words[0].isdigit() and words[1].isdigit()):
            continue
        for word in words[8:13:4]:
            if word == "0":
                passed += 1
            elif word != "N/A":
                failed += 1
                detail = detail or f"{words[0]} B: {word} wrong"
    if done.returncode != 0 or "Out of bounds values : 0 OK" not in done.stdout:
        failed = max(failed, 1)
        detail = detail or f"exit {done.returncode}: {last_line(done.stdout, done.stderr)}"
    elif passed == 0:
        failed, detail = 1, "nothing was checked"
    if failed == 0 and (not ran or ran[1] != version):
        return Verdict(0, 1, f"it was run by NCCL {ran[1] if ran else '?'}")
    return Verdict(passed, failed, detail)


class Cell:
    """One program with one version."""

    def __init__(self, program, version, command, judge, environment=None):
        self.program, self.version, self.command, self.judge = program, version, command, judge
        self.environment = environment or {}


def coll_perf_cells(args, version, library):
    base = [str(args.coll_perf), "--nccl", str(library), "--json"]
    base += ["--ngpus", str(args.gpus)] if args.gpus else []
    size = ["-b", args.begin, "-e", args.end, "-f", str(args.factor)]
    for layout in args.layouts:
        more = ["--threads"] if layout == "threads" else []
        for kind in args.types:
            yield Cell(f"coll_perf, {len(args.collectives)} collectives, {kind}, {layout}", version,
                       [*base, *more, *size, "-c", ",".join(args.collectives), "-d", kind],
                       judge_coll_perf)
    for scenario in args.scenarios:
        yield Cell(f"coll_perf --scenario {scenario}", version,
                   [*base, "--scenario", scenario], judge_coll_perf)


def nccl_tests_cells(args, version, library):
    same = args.nccl_tests.get(version)
    folder = same or args.nccl_tests.get("")
    if folder is None:
        return
    names = {"float": "float", "bf16": "bfloat16"}
    gpus = args.gpus or args.present
    size = ["-b", args.begin, "-e", args.end, "-f", str(args.factor)]
    ways = []
    if "threads" in args.layouts:
        ways.append(("one process", [], ["-g", str(gpus)]))
    if "processes" in args.layouts and args.mpirun:
        ways.append(("processes", [*shlex.split(args.mpirun), "-np", str(gpus)], ["-g", "1"]))
    loader = {"LD_LIBRARY_PATH": os.pathsep.join(
        filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH")])),
        "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "VERSION")}
    for way, before, after in ways:
        for collective in args.collectives:
            program = folder / f"{collective}_perf"
            if not program.is_file():
                continue
            for kind in args.types:
                yield Cell(f"nccl-tests {collective}_perf, {kind}, {way}", version,
                           [*before, str(program), *after, *size, "-d", names.get(kind, kind)],
                           judge_nccl_tests, loader)
        if same is None or version_key(version) < GIN_SINCE:
            continue
        for mode in ("3", "4"):
            program = folder / "alltoall_perf"
            if program.is_file():
                yield Cell(f"nccl-tests alltoall_perf -D {mode} (GIN), {way}", version,
                           [*before, str(program), *after, *size, "-R", "2", "-D", mode],
                           judge_nccl_tests, loader)


def environment_of(cell, args, links):
    """What a run gets besides the command; the user's own settings win but for those that say what
    is tested."""
    env = dict(os.environ)
    for name, text in (("TWINPATH_FABRIC", "soft"), ("NCCL_P2P_DISABLE", "1"),
                       ("NCCL_SHM_DISABLE", "1")):
        env.setdefault(name, text)
    env.update(cell.environment)
    if "--json" in cell.command:
        # NCCL writes to stdout otherwise, into the document.
        env.setdefault("NCCL_DEBUG_FILE", os.path.join(str(links), "nccl.%p"))
    env["NCCL_NET"] = args.plugin_name
    env["NCCL_NET_PLUGIN"] = str(args.plugin)
    if version_key(cell.version) < (2, 21):
        # No path is understood there: libnccl-net-X.so in the loader's path.
        env["NCCL_NET_PLUGIN"] = "matrix"
        env["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, [str(links), env.get("LD_LIBRARY_PATH")]))
    return env


def run(cell, args, links):
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(cell.command, env=environment_of(cell, args, links), stdout=out,
                                   stderr=err, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            process.wait(timeout=args.limit)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        try:
            os.killpg(process.pid, signal.SIGKILL)  # ranks that were left, too
        except ProcessLookupError:
            pass
        process.wait()
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(cell.command, process.returncode,
                                           out.read(), err.read())
    if late:
        verdict = Verdict(0, 1, f"not finished after {args.limit:g} s: "
                                f"{last_line(done.stdout, done.stderr)}")
    else:
        verdict = cell.judge(done, cell.version)
    return {"program": cell.program, "fabric": cell.version,
            "result": "fail" if verdict.failed else "pass", "passed": verdict.passed,
            "failed": verdict.failed, "detail": verdict.detail,
            "seconds": round(time.monotonic() - begin, 1), "command": cell.command,
            "source": args.source, "machine": args.machine,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}


def read_results(path):
    """{(program, version): line}, the last of each."""
    lines = {}
    if path and path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            if text.strip():
                line = json.loads(text)
                lines[line["program"], line["fabric"]] = line
    return lines


def together(rows, versions):
    """Rows and columns in which neighbouring versions that did the same, with nothing to note, share a column."""
    columns = []  # of (texts, versions)
    for version in versions:
        cells = [row.get(version) for row in rows.values()]
        noted = any(cell and cell.details for cell in cells)
        texts = None if noted else [cell and cell.text() for cell in cells]
        if texts and columns and columns[-1][0] == texts:
            columns[-1][1].append(version)
        else:
            columns.append((texts, [version]))
    names = {same[0]: ", ".join(same) for _, same in columns}
    return ({program: {names[v]: cell for v, cell in row.items() if v in names} for program, row in rows.items()},
            list(names.values()))


def make_table(lines):
    """Markdown of all cells, in order of programs and of versions."""
    rows = {}
    for (program, version), line in lines.items():
        rows.setdefault(program, {}).setdefault(version, report.Cell()).add(line)
    said = {key: sorted({line.get(key, "?") for line in lines.values()})
            for key in ("source", "date", "machine")}
    title = (f"Source {', '.join(said['source'])}; {', '.join(said['date'])}; "
             f"{', '.join(said['machine'])}. Columns are versions of NCCL; a number counts checked "
             "results (a collective, a size, in place or not); an empty cell was not run.")
    columns = sorted({version for _, version in lines}, key=version_key)
    rows, columns = together(rows, columns)
    return report.markdown(rows, title, columns)


def source_of():
    git = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
                         capture_output=True, text=True)
    return git.stdout.strip() if git.returncode == 0 else "unknown"


def machine_of():
    """(number of GPUs, text)."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
        names = re.findall(r"^GPU \d+: (.*?) \(", done.stdout, re.M)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        names = []
    return len(names), f"{len(names)} x {names[0]}" if names else "no GPU"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--nccl", action="append", type=pathlib.Path, default=[], metavar="FOLDER")
    add("--coll-perf", type=pathlib.Path, default=ROOT / "build/tools/coll_perf/coll_perf")
    add("--nccl-tests", action="append", default=[], metavar="[VERSION=]FOLDER")
    add("--mpirun", help="how nccl-tests built with MPI are started, e.g. \"mpirun "
                         "--allow-run-as-root\"")
    add("--plugin", type=pathlib.Path, default=ROOT / "build/plugin/nccl/libnccl-net.so")
    add("--gpus", type=int, default=0, help="GPUs [all]")
    add("--types", default="float,bf16")
    add("--layouts", default="processes,threads")
    add("--collectives", default=",".join(COLLECTIVES))
    add("--scenarios", default="", help="of coll_perf: split,many-comms,again,abort,kill")
    add("--begin", default="8")
    add("--end", default="64m")
    add("--factor", type=int, default=8)
    add("--limit", type=float, default=300, help="seconds that one cell may take [300]")
    add("--only", default="", help="programs whose name this regular expression finds")
    add("--results", type=pathlib.Path, help="file of JSON lines, read and added to")
    add("--resume", action="store_true", help="do not run what --results has passed already")
    add("--json", type=pathlib.Path, help="all cells as one JSON document")
    add("--update", type=pathlib.Path, help="file whose lines between <!-- nccl:begin --> and "
                                            "<!-- nccl:end --> become the table")
    add("--list", action="store_true", help="names the cells and runs nothing")
    args = parser.parse_args()
    for name in ("types", "layouts", "collectives", "scenarios"):
        setattr(args, name, [word for word in getattr(args, name).split(",") if word])
    for name, known in (("layouts", ("processes", "threads")), ("collectives", COLLECTIVES)):
        for word in getattr(args, name):
            if word not in known:
                parser.error(f"--{name}: {word} is unknown; use {', '.join(known)}")
    tests = {}
    for text in args.nccl_tests:
        version, _, folder = text.rpartition("=")
        tests[version] = pathlib.Path(folder).resolve()
        if not tests[version].is_dir():
            parser.error(f"--nccl-tests: there is no folder {folder}")
    args.nccl_tests = tests
    if not args.nccl and not args.results:
        parser.error("--nccl FOLDER says what to run, or --results FILE what to show")
    if args.nccl and not args.plugin.is_file():
        parser.error(f"there is no plugin {args.plugin}; build it, or give --plugin")
    return args


def cells_of(args):
    for version, library in find_versions(args.nccl).items():
        cells = []
        if args.coll_perf.is_file():
            cells += coll_perf_cells(args, version, library)
        cells += nccl_tests_cells(args, version, library)
        for cell in cells:
            if re.search(args.only, cell.program):
                yield cell


def main():
    args = parse_arguments()
    args.present, args.machine = machine_of()
    args.source = source_of()
    lines = read_results(args.results)
    failed = 0
    if args.nccl:
        args.plugin = args.plugin.resolve()
        args.plugin_name = plugin_name(args.plugin)
        cells = list(cells_of(args))
        if args.list:
            for cell in cells:
                print(f"{cell.version:8} {cell.program}: {shlex.join(cell.command)}")
            return 0
        if not cells:
            print("nothing to run: no coll_perf, no nccl-tests, or --only finds none",
                  file=sys.stderr)
            return 2
        with tempfile.TemporaryDirectory() as links:
            os.symlink(args.plugin, os.path.join(links, "libnccl-net-matrix.so"))
            for cell in cells:
                old = lines.get((cell.program, cell.version))
                if args.resume and old and old["result"] == "pass":
                    continue
                line = run(cell, args, links)
                lines[cell.program, cell.version] = line
                failed += line["result"] == "fail"
                count = f"{line['passed']} of {line['passed'] + line['failed']}"
                print(f"{cell.version:8} {line['result']:4} {count:>10} {line['seconds']:7.1f} s  "
                      f"{cell.program}  {line['detail']}", flush=True)
                if args.results:
                    with args.results.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(line) + "\n")
    if not lines:
        print(f"{args.results} has no results", file=sys.stderr)
        return 2
    table = make_table(lines)
    print(table)
    if args.json:
        args.json.write_text(json.dumps({"cells": list(lines.values())}, indent=1) + "\n",
                             encoding="utf-8")
    if args.update:
        report.put(args.update, table, "nccl")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has seen enough is no fault
    sys.exit(main())
