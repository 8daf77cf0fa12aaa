#!/usr/bin/env python3
"""Prints every deviation with its section, and every behaviour, as Markdown.

Exits with 1 where two behaviours have one name, where one is skipped or of no known area, or where
no case asks for a deviation.
"""
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
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
ROW = re.compile(r"\{" + STRING + r",\s*Fabric::(\w+),\s*" + STRING + r",\s*" + STRING + r"(?:,\s*\d+)?\}")


def text(literals):
    """What adjacent string literals of C++ say together."""
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')


def listing(sources):
    """The lists, and what is wrong with the sources."""
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
    out = f"## Deviations\n\n{len(rows)} rows; `IB` is the specification, vol. 1.\n\n"
    out += "| fabric | what it does | IB says | id |\n|---|---|---|---|\n"
    out += "".join(f"| {f} | {does} | {ib} | `{i}` |\n" for i, f, does, ib in rows)
    out += f"\n## Behaviours\n\n{len(cases)} in all.\n"
    for area, title in AREAS.items():
        mine = [n for a, n in cases if a == area]
        out += f"\n### {title} (`[{area}]`, {len(mine)})\n\n" + "".join(f"- {n}\n" for n in mine)
    return out, wrong


def main():
    lists, wrong = listing({p.name: p.read_text() for p in sorted(FOLDER.glob("*.cc"))})
    print(lists, end="")
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


sys.exit(main())
