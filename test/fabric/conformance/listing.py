#!/usr/bin/env python3
"""The lists in README.md: every behaviour, and every deviation with its section.

usage: listing.py [--write]

Without --write it checks that README.md says what the sources say (exit 1 if not), that no two
behaviours have one name, that none is skipped, and that some case asks for each deviation.
"""
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
BEGIN, END = "<!-- listing.py: begin -->\n", "<!-- listing.py: end -->\n"
AREAS = {
    "device": "Devices, ports, GIDs, P_Keys", "memory": "Protection domains and memory regions",
    "rights": "Bounds and rights at the access", "cq": "Completion queues",
    "channel": "Completion channels", "states": "States of a queue pair",
    "attributes": "Attributes of a queue pair", "data": "Data", "atomic": "Atomics",
    "order": "Order", "error": "Completions in error", "post": "Posting",
    "srq": "Shared receive queues", "event": "Asynchronous events",
    "extended": "Work requests through ibv_wr_*",
}
STRING = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
CASE = re.compile(r"TEST_CASE\(\s*" + STRING + r',\s*"\[(\w+)\]"\)')
ROW = re.compile(r"\{" + STRING + r",\s*Fabric::(\w+),\s*" + STRING + r",\s*" + STRING + r"\}")


def text(literals):
    """What adjacent string literals of C++ say together."""
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')


def listing(sources):
    """The generated part of README.md, and what is wrong with the sources."""
    cases = [(area, text(name)) for s in sources.values() for name, area in CASE.findall(s)]
    rows = [tuple(text(f) if '"' in f else f for f in row)
            for row in ROW.findall(sources["deviations.cc"])]
    names = [name for _, name in cases]
    wrong = [f"two behaviours have one name: {n}" for n in sorted(set(names)) if names.count(n) > 1]
    wrong += [f"a case of no known area: [{a}] {n}" for a, n in cases if a not in AREAS]
    wrong += [f"{f} skips a case" for f, s in sources.items() if re.search(r"NEEDS\(|SKIP\(", s)]
    everything = "".join(sources.values())
    wrong += [f"no case asks for the deviation {i}" for i, *_ in rows
              if everything.count(f'"{i}"') < 1 + sum(r[0] == i for r in rows)]
    out = f"\n## Deviations\n\n{len(rows)} rows; `IB` is the specification, vol. 1.\n\n"
    out += "| fabric | what it does | IB says | id |\n|---|---|---|---|\n"
    out += "".join(f"| {f} | {does} | {ib} | `{i}` |\n" for i, f, does, ib in rows)
    out += f"\n## Behaviours\n\n{len(cases)} in all.\n"
    for area, title in AREAS.items():
        mine = [n for a, n in cases if a == area]
        out += f"\n### {title} (`[{area}]`, {len(mine)})\n\n" + "".join(f"- {n}\n" for n in mine)
    return out, wrong


def main():
    sources = {p.name: p.read_text() for p in sorted(FOLDER.glob("*.cc"))}
    generated, wrong = listing(sources)
    readme = FOLDER / "README.md"
    head, _, rest = readme.read_text().partition(BEGIN)
    old, _, tail = rest.partition(END)
    if "--write" in sys.argv:
        readme.write_text(head + BEGIN + generated + END + tail)
    elif old != generated:
        wrong.append("README.md is out of date: run test/fabric/conformance/listing.py --write")
    print("\n".join(wrong) or "README.md lists what the sources say")
    return bool(wrong)


sys.exit(main())
