#!/usr/bin/env python3
"""Holds documents to a length, and their sentences too.

usage: prose.py ROOT | prose.py --list ROOT | prose.py --self-test

Sentences of every document are checked, and the words, as `wc -w` counts them, of those in LIMITS.
A sentence is what stands between full stops in a paragraph, an item of a list or a cell of a table,
where semicolons end it too, or a part of a list with dots (a · b); what is in backticks is one word.
LIMITS has today's figures with a little room: a document may become shorter, and then its row is to
be lowered.  --list shows the sentences that are too long, with their numbers of words.
"""
import pathlib
import re
import sys

LONG = 30  # words of a sentence
TOTAL = 34100  # words of all of them
USERS_TOTAL = 22000  # of those for users
LIMITS = {
    "README.md": 1200,
    "gda/FAILURES.md": 800,
    "gda/README.md": 3460,
    "plugin/ARCHITECTURE.md": 1240,
    "plugin/BRINGUP.md": 1150,
    "plugin/GLOSSARY.md": 700,
    "plugin/OPERATING.md": 5170,
    "plugin/SETTINGS.md": 2850,
    "proxy/README.md": 4860,
    "test/COMPATIBILITY.md": 2800,
    "test/MEASUREMENTS.md": 2470,
    "tools/EXAMPLES.md": 800,
    "tools/JSON.md": 1770,
    "tools/README.md": 1580,
    "topology/DECISIONS.md": 2400,
    "topology/README.md": 1200,
}

USERS = ("README.md", "plugin/BRINGUP.md", "plugin/OPERATING.md", "plugin/SETTINGS.md", "test/COMPATIBILITY.md",
         "test/MEASUREMENTS.md", "tools/EXAMPLES.md", "tools/JSON.md", "tools/README.md", "topology/DECISIONS.md")

FENCE = re.compile(r"^(```|~~~).*?^\1", re.S | re.M)
COMMENT = re.compile(r"<!--.*?-->", re.S)


def blocks(text):
    """Paragraphs, items of lists and cells of tables, each as one line."""
    block = []

    def end():
        if block:
            yield " ".join(block)
            block.clear()
    for line in COMMENT.sub("", FENCE.sub("\n", text)).splitlines():
        stripped = line.strip()
        if stripped.startswith("|"):
            yield from end()
            for cell in re.split(r"(?<!\\)\|", stripped)[1:-1]:
                yield from cell.strip().split("; ")
        elif not stripped or stripped.startswith("#") or line.startswith("    ") and not block:
            yield from end()
        elif re.match(r"([-*+]|\d+\.) ", stripped):
            yield from end()
            block.append(stripped.split(" ", 1)[1])
        else:
            block.append(stripped)
    yield from end()


def sentences(text):
    for block in blocks(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
        plain = re.sub(r"`[^`]*`", "code", plain).replace(".*", ".")
        # Not before what goes on in small letters, as behind "e.g.".
        yield from re.split(r"(?<=[\w%)*\"][.!?])\s+(?=[-A-Z0-9(\"*]|code)| · ", plain)


def long_sentences(text):
    return [(len(s.split()), s) for s in sentences(text) if len(s.split()) > LONG]


def check(texts, limits, total, users_total):
    wrong, words, users = [], 0, 0
    for name, text in texts.items():
        wrong += [f"{name} has a sentence of {n} words, more than {LONG}; split it: {s}" for n, s in long_sentences(text)]
    for name, most_words in limits.items():
        found = len(texts[name].split())
        words += found
        users += found if name in USERS else 0
        if found > most_words:
            wrong.append(f"{name} has {found} words, more than {most_words}: shorten it")
    for what, have, most in (("these documents", words, total), ("the documents for users", users, users_total)):
        if have > most:
            wrong.append(f"{what} have {have} words, more than {most}")
    return wrong


def read(root):
    return {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in sorted(root.rglob("*.md"))
            if not any(part.startswith(("build", ".")) and part != ".github" for part in p.relative_to(root).parts[:-1])}


def self_test():
    long = "word " * 30 + "end"
    text = (f"# {long}\n\nOne two. Three `a. B c` four\nfive, e.g. six.\n\n- item {long}.\n  Goes on\n"
            f"```\n{long}\n```\n| a | {long} |\n|---|---|\n| b | [x y](z) ends. Here; now |\n<!-- {long} -->\n")
    assert list(sentences(text)) == [
        "One two.", "Three code four five, e.g. six.", f"item {long}.", "Goes on",
        "a", long, "---", "---", "b", "x y ends.", "Here", "now"], list(sentences(text))
    assert [n for n, _ in long_sentences(text)] == [32, 31]
    name, short = USERS[0], "Nine words are here, and they are not many."
    assert check({name: short, "else": short}, {name: 9}, 9, 9) == []
    assert check({"else": short}, {"else": 9}, 9, 8) == []
    for limit, total, users, word in ((8, 9, 9, "more than 8"), (9, 8, 9, "these documents have 9"),
                                      (9, 9, 8, "users have 9")):
        found = check({name: short}, {name: limit}, total, users)
        assert len(found) == 1 and word in found[0], found
    found = check({"else": text}, {}, 0, 0)
    assert len(found) == 2 and "a sentence of 32 words" in found[0], found
    print("prose.py finds what it should")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    texts = read(pathlib.Path(arguments[-1]))
    if arguments[0] == "--list":
        for name, text in texts.items():
            print(f"{name}: {len(text.split())} words")
            for n, sentence in long_sentences(text):
                print(f"  {n}: {sentence}")
        return 0
    wrong = check(texts, LIMITS, TOTAL, USERS_TOTAL)
    print("\n".join(wrong) or "the documents are as short as they were")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
