#!/usr/bin/env python3
"""Makes the table of programs and topologies out of what the suites wrote.

usage: report.py [--title TEXT] OUTPUT RESULTS.jsonl...

A line of a results file is one program on one fabric:
    {"program": NAME, "fabric": COLUMN, "result": "pass"|"fail"|"skip", "detail": WHY}
and, where a program has several cases, "passed", "failed" and "skipped" (numbers).  "ok", "failed"
and "skipped" are understood too, and "soft" for "soft HCA".  Lines with the same program and fabric
add up.

OUTPUT is a .json file, a .md file or "-" (Markdown to stdout).  A .md file that has the lines
"<!-- report:begin -->" and "<!-- report:end -->" gets the table between these and keeps the rest; a
file without them that exists already is left alone, with status 1.
"""
import argparse
import json
import pathlib
import sys

COLUMNS = ["soft HCA", "rxe pair", "rxe pair2", "two hosts", "rxe dummy", "rxe dummy2", "siw"]
SHORT = {"soft": "soft HCA"}
# So many programs that were right on one fabric only stand in a line below the table.
MANY = 4
RESULTS = {"pass": "passed", "ok": "passed", "fail": "failed", "failed": "failed",
           "skip": "skipped", "skipped": "skipped"}


class Cell:
    """What one program did on one fabric."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.details = []

    def add(self, line):
        one = RESULTS.get(line["result"].lower())
        if one is None:
            raise ValueError(f"result {line['result']!r} is none of pass, fail, skip")
        for key in ("passed", "failed", "skipped"):
            number = int(line.get(key, 0))
            if key == one:
                number = max(number, 1)
            setattr(self, key, getattr(self, key) + number)
        if one != "passed" and line.get("detail"):
            self.details.append(line["detail"])

    def text(self):
        ran = self.passed + self.failed
        if self.failed:
            return f"**FAIL** {self.failed} of {ran}"
        if self.passed:
            return f"pass {self.passed}" if self.passed > 1 else "pass"
        return "skipped"


def read(paths):
    """Rows (name: {column: Cell}) in order of appearance."""
    rows = {}
    for path in paths:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                fabric = SHORT.get(line["fabric"], line["fabric"])
                cell = rows.setdefault(line["program"], {}).setdefault(fabric, Cell())
                cell.add(line)
            except (ValueError, KeyError, TypeError) as error:
                sys.exit(f"{path}:{number}: not a line of results: {error}")
    return rows


def columns_of(rows):
    found = {fabric for cells in rows.values() for fabric in cells}
    return [c for c in COLUMNS if c in found] + sorted(found - set(COLUMNS))


def right_on_one(rows, columns):
    """{column: names} of programs that were tried there only, and passed."""
    found = {}
    for name, cells in rows.items():
        [(column, cell), *more] = cells.items()
        if not more and cell.text() == "pass" and not cell.skipped and len(columns) > 1:
            found.setdefault(column, []).append(name)
    return {column: names for column, names in found.items() if len(names) >= MANY}


def markdown(rows, title, columns=None):
    columns = columns or columns_of(rows)
    lines = [title, ""] if title else []
    alone = right_on_one(rows, columns)
    in_a_line = {name for names in alone.values() for name in names}
    lines.append("| program | " + " | ".join(columns) + " |")
    lines.append("|---" * (len(columns) + 1) + "|")
    notes = []
    for name, cells in rows.items():
        if name in in_a_line:
            continue
        texts = [cells[c].text() if c in cells else "" for c in columns]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
        for column in columns:
            if column in cells:
                what = "failed" if cells[column].failed else "skipped"
                notes += [f"- {name}, {column}: {what}: {d}" for d in cells[column].details]
    for column, names in alone.items():
        lines += ["", f"On {column} only, and passed: " + " · ".join(names).replace("*", r"\*") + "."]
    if notes:
        lines += [""] + notes
    return "\n".join(lines) + "\n"


def as_json(rows, title):
    out = []
    for name, cells in rows.items():
        for fabric, cell in cells.items():
            out.append({"program": name, "fabric": fabric, "passed": cell.passed,
                        "failed": cell.failed, "skipped": cell.skipped, "details": cell.details})
    document = {"title": title, "columns": columns_of(rows), "results": out}
    return json.dumps(document, indent=1) + "\n"


def put(path, table, mark="report"):
    """Writes a Markdown file, or the part of it between the markers."""
    begin_line, end_line = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    if not path.exists():
        path.write_text(table, encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(begin_line)
    _, end, after = rest.partition(end_line)
    if not begin or not end:
        sys.exit(f"{path} exists and has no lines {begin_line} and {end_line}; add them, or name a new file")
    path.write_text(f"{before}{begin_line}\n{table}{end_line}{after}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--title", default="")
    parser.add_argument("output")
    parser.add_argument("results", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    rows = read(args.results)
    if not rows:
        sys.exit("no results to report: no suite wrote a line")
    if args.output == "-":
        sys.stdout.write(markdown(rows, args.title))
    elif args.output.endswith(".json"):
        pathlib.Path(args.output).write_text(as_json(rows, args.title), encoding="utf-8")
    elif args.output.endswith(".md"):
        put(pathlib.Path(args.output), markdown(rows, args.title))
    else:
        sys.exit(f"{args.output}: a report is a .md or a .json file")


if __name__ == "__main__":
    main()
