#!/usr/bin/env python3
"""Tells which plugin tables a release of NCCL asks for, and where its ABI is not ours.

    pip download --no-deps nvidia-nccl-cu13==2.32.3
    tools/nccl_abi.py nvidia_nccl_cu13-2.32.3-*.whl       wheels, or folders with lib and include
    tools/nccl_abi.py --facts test/golden/nccl_abi.json             what was found before, once more
    tools/nccl_abi.py --facts test/golden/nccl_abi.json --add WHEEL...            keep what is found

A line for each release names the newest table of each family that both sides have.  Below it stands
what is newer there and missing here, and each field that lies elsewhere: in the tables and what
their functions take, and in the structs that kernels (GIN, GDAKI) read.  A field that is new there
is told also where ours has padding.  Sizes and offsets come from the release's debug information
and device headers; ours are compiled from --source.  Needs g++, and no GPU.

Exit status: 0 all is served as asked, 1 something is not, 2 bad option or unreadable file.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import zlib
from struct import error as TruncatedError

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "lib"))
import abi_compare  # noqa: E402
import nccl_facts  # noqa: E402

OUR_HEADERS = ("gda/abi/abi.h", "plugin/nccl/abi/net.h", "plugin/nccl/abi/gin.h",
               "plugin/nccl/abi/rma.h", "plugin/nccl/abi/profiler.h")
EXPORTS = "test/golden/exports.txt"


def exported(source):
    """{symbol without its number: the numbers that the plugin has}."""
    tables = {}
    for name in (source / EXPORTS).read_text(encoding="utf-8").split():
        family, number = re.fullmatch(r"(\w+)_v(\d+)", name).groups()
        tables.setdefault(family, []).append(int(number))
    return tables


def our_layouts(source, tables):
    names = {abi_compare.table_name(family, number)
             for family, numbers in tables.items() for number in numbers}
    return nccl_facts.compile_structs(OUR_HEADERS, source, names | set(abi_compare.OURS))


def version_key(version):
    return [int(number) for number in version.split(".")]


def read_facts(path):
    """Facts of each release, oldest first.  Releases share what is laid out alike."""
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {
        "releases": {}, "structs": []}
    facts = []
    for version, release in document["releases"].items():
        structs = {struct["name"]: {key: struct[key] for key in ("size", "fields")}
                   for struct in document["structs"] if version in struct["in"]}
        facts.append({"version": version, **release, "structs": structs})
    return sorted(facts, key=lambda release: version_key(release["version"]))


def needed(facts, tables):
    """Names of the structs that a comparison looks at."""
    names = [name for name in facts["structs"] if name.startswith(nccl_facts.READ_BY_KERNELS)]
    names += [abi_compare.table_name(family, number)
              for family, numbers in tables.items() for number in numbers]
    for name in names:  # grows
        for field in facts["structs"].get(name, {"fields": []})["fields"]:
            names += [n for n in nccl_facts.layouts.pointed_to(field[3]) if n and n not in names]
    return set(names)


def write_facts(path, facts, tables):
    """JSON, a line for each field, so that a change is seen in it."""
    structs = {}
    for release in facts:
        wanted = needed(release, tables)
        for name in sorted(wanted & set(release["structs"])):
            layout = release["structs"][name]
            key = name, json.dumps(layout)
            structs.setdefault(key, {"name": name, "in": [], **layout})["in"].append(
                release["version"])
    releases = ",\n".join(f"{json.dumps(r['version'])}: " +
                          json.dumps({"gdaki": r["gdaki"], "asks": r["asks"]}) for r in facts)
    parts = []
    for struct in sorted(structs.values(), key=lambda s: (s["name"], version_key(s["in"][0]))):
        fields = ",\n  ".join(json.dumps(field) for field in struct.pop("fields"))
        parts.append(json.dumps(struct)[:-1] + f', "fields": [\n  {fields}]}}')
    path.write_text('{"releases": {\n' + releases + '},\n"structs": [\n' + ",\n".join(parts) +
                    "\n]}\n", encoding="utf-8")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("releases", nargs="*", type=pathlib.Path, metavar="WHEEL|FOLDER")
    add("--facts", type=pathlib.Path, metavar="FILE", help="what was found in releases before")
    add("--add", action="store_true", help="write what is found in these releases into --facts")
    add("--source", type=pathlib.Path, default=ROOT, help="of the plugin; as a rule this one")
    args = parser.parse_args()
    known = args.facts is not None and args.facts.exists()
    if args.add and args.facts is None or not args.releases and not known:
        parser.error("give wheels, or what was found before by --facts")
    return args


def report(args):
    """Prints it: the number of complaints."""
    tables = exported(args.source)
    ours = our_layouts(args.source, tables)
    known = read_facts(args.facts) if args.facts else []
    found = [nccl_facts.of_release(path) for path in args.releases]
    if args.add:
        new = {facts["version"] for facts in found}
        known = sorted([f for f in known if f["version"] not in new] + found,
                       key=lambda facts: version_key(facts["version"]))
        write_facts(args.facts, known, tables)
    complaints = 0
    for facts in found or known:
        head, lines = abi_compare.report(facts, ours, tables)
        print("\n    ".join([head, *lines]))
        complaints += len(lines)
    return complaints


def main():
    args = parse_arguments()
    try:
        return 1 if report(args) else 0
    except (OSError, ValueError, subprocess.SubprocessError, zlib.error, TruncatedError) as error:
        print(f"nccl_abi.py: {error}", file=sys.stderr)
    except (AttributeError, LookupError) as error:
        print(f"nccl_abi.py: what was read is not as expected: {error!r}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
