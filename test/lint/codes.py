#!/usr/bin/env python3
"""Checks that topology/DECISIONS.md lists the codes that the source has, and no others.

usage: codes.py [--write] ROOT | codes.py --self-test

Rules (enum Rule, topology/decide/record.h), reasons (catalogue of topology/model/reason.cc) and warnings (every
`warn("CODE", ...)`).  The table of reasons is generated: --write brings it up to date.
"""
import pathlib
import re
import sys

BEGIN, END = "<!-- reasons:begin -->\n", "<!-- reasons:end -->\n"
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def rules(record_h):
    body = re.search(r"enum class Rule[^{]*\{(.*?)\};", record_h, re.S).group(1)
    return {name.upper() for name in re.findall(r"\b[a-z]\d+\b", body)}


def text(expression, constants):
    """The text of an initialiser: literals side by side, or the name of a constant."""
    expression = expression.strip()
    if not expression.startswith('"'):
        return constants[expression]
    return "".join(LITERAL.findall(expression)).replace('\\"', '"')


def reasons(reason_cc):
    """[(code, sentence, remedy)] in the order of the catalogue."""
    constants = {name: text(value, {}) for name, value in
                 re.findall(r'constexpr std::string_view (\w+) =\s*((?:"(?:[^"\\]|\\.)*"\s*)+);', reason_cc)}
    body = re.search(r"kCatalogue\{\{(.*?)\n\}\};", reason_cc, re.S).group(1)
    row = re.compile(r'\{\s*(\w+),\s*"(\w+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+),'
                     r'\s*(\w+|(?:"(?:[^"\\]|\\.)*"\s*)+)\}')
    rows = [(code, text(sentence, constants), text(remedy, constants))
            for _, code, sentence, remedy in row.findall(body)]
    begun = len(re.findall(r"^    \{\w+,", body, re.M))
    if begun != len(rows):
        raise ValueError(f"reason.cc has {begun} rows, of which {len(rows)} are understood")
    return rows


def cell(words):
    return words.replace("|", "\\|")


def reason_table(rows):
    out = "| code | meaning | what to do |\n|---|---|---|\n"
    for code, sentence, remedy in rows:
        out += f"| `{code}` | {cell(sentence)} | {cell(remedy)} |\n"
    return out


def section_codes(document, title):
    """Codes in the first column of the tables below a heading."""
    part = document.split(f"\n## {title}\n", 1)
    if len(part) < 2:
        return set()
    body = part[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([A-Z_0-9]+)` \|", body, re.M))


def compare(what, source, document):
    return ([f"{what} {c} is in the source and not in topology/DECISIONS.md"
             for c in sorted(source - document)] +
            [f"{what} {c} is in topology/DECISIONS.md and not in the source"
             for c in sorted(document - source)])


def check(document, record_h, reason_cc, others):
    rows = reasons(reason_cc)
    warned = {c for t in others for c in re.findall(r'\bwarn\("([A-Z_0-9]+)"', t)}
    wrong = compare("rule", rules(record_h), section_codes(document, "Rules"))
    wrong += compare("reason", {r[0] for r in rows}, section_codes(document, "Reasons"))
    wrong += compare("warning", warned, section_codes(document, "Warnings about the machine"))
    if not wrong and document.split(BEGIN)[1].split(END)[0] != reason_table(rows):
        wrong.append("the table of reasons is out of date: run test/lint/codes.py --write .")
    return wrong


def self_test():
    record = "enum class Rule : std::uint8_t {\n  none,\n  w1, u2,\n};"
    catalogue = ('constexpr std::string_view kFix =\n    "mend; again";\nkCatalogue{{\n'
                 '    {ok, "OK", "all "\n     "well", ""},\n    {bad, "BAD", "not \\"it\\"", kFix},\n}};')
    rows = reasons(catalogue)
    assert rows == [("OK", "all well", ""), ("BAD", 'not "it"', "mend; again")], rows
    good = ("\n## Rules\n| `W1` |\n| `U2` |\n\n## Reasons\n" + BEGIN + reason_table(rows) + END +
            "\n## Warnings about the machine\n| `FLAT` | x |\n")
    warning = ['m.warn("FLAT", "x")']
    assert check(good, record, catalogue, warning) == []
    for bad, word in ((good.replace("| `W1` |\n", ""), "rule W1 is in the source"),
                      (good.replace("| `U2` |", "| `U2` |\n| `U3` |"), "rule U3 is in topology"),
                      (good.replace("`OK`", "`OKAY`"), "reason OK is in the source"),
                      (good.replace("all well", "fine"), "out of date"),
                      (good.replace("`FLAT`", "`ROUND`"), "warning FLAT is in the source")):
        found = check(bad, record, catalogue, warning)
        assert any(word in w for w in found), (word, found)
    print("codes.py finds what it should")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    write = "--write" in arguments
    root = pathlib.Path([a for a in arguments if a != "--write"][0])
    path = root / "topology" / "DECISIONS.md"
    document = path.read_text(encoding="utf-8")
    record_h = (root / "topology" / "decide" / "record.h").read_text(encoding="utf-8")
    reason_cc = (root / "topology" / "model" / "reason.cc").read_text(encoding="utf-8")
    others = [p.read_text(encoding="utf-8") for folder in ("topology", "plugin", "proxy", "gda", "tools")
              for p in sorted((root / folder).rglob("*.cc"))]
    if write:
        before, rest = document.split(BEGIN)
        document = before + BEGIN + reason_table(reasons(reason_cc)) + END + rest.split(END)[1]
        path.write_text(document, encoding="utf-8")
    wrong = check(document, record_h, reason_cc, others)
    print("\n".join(wrong) or "topology/DECISIONS.md lists the codes of the source")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
