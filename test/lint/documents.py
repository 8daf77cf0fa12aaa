#!/usr/bin/env python3
"""Checks what README.md and the other documents say against the tree.

usage: documents.py ROOT | documents.py --self-test

 1. README.md has no more than 200 lines.
 2. Relative links lead to files, and to headings in them.
 3. Files named from the top folder on (`proxy/wire/cts.h`) exist; programs below build/ are made by
    the meson.build of that folder.
 4. TWINPATH_ names are settings (plugin/base/options.cc), or settings of tools and tests (OWN).
 5. Messages (first column of tables that begin with "message has" or "line has") occur in the
    source: "…" in the document and a conversion or an expression in the source match anything.
 6. Programs (first column of the table "program" in README.md, and `twinpath-...` anywhere) are made
    by Meson or installed.
 7. Documents that are installed (tools/package/files) link to what is installed.
 8. Pictures in documents are drawn by tools, and tests compare them with what these draw (DRAWN).  The
    documents of PICTURED have one.
"""
import os
import pathlib
import re
import sys
import tempfile

MOST_LINES = 200
TOP = ("plugin", "proxy", "gda", "topology", "test", "tools", ".ci")
SOURCES = ("plugin", "proxy", "gda", "topology")
# Settings of scripts and tests, and macros of the build: not read by the plugin.
OWN = {"TWINPATH_NCCL", "TWINPATH_FUZZ_SECONDS", "TWINPATH_VM_SECONDS", "TWINPATH_VM_CACHE",
       "TWINPATH_VM_KERNEL", "TWINPATH_LONG", "TWINPATH_TOPOLOGY_DATA",
       "TWINPATH_CONFORMANCE_DEVICES", "TWINPATH_VERSION", "TWINPATH_NO_CONNECTION_COUNTS", "TWINPATH_BUILD_TYPE"}

# Compared by test/tools/topo_test.py, byte by byte.
DRAWN = re.compile(r"test/golden/topo/[\w-]+\.svg")
PICTURED = ("README.md", "plugin/OPERATING.md", "topology/README.md")

PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?\n(.*?)```|`([^`\n]+)`", re.S)
SETTING = re.compile(r"\bTWINPATH_[A-Z][A-Z0-9_]*\b")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
COMMENT = re.compile(r'//[^\n]*|("(?:[^"\\\n]|\\.)*")')
CONVERSION = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[a-zA-Z]")
# What may stand between two literals of one message: an expression, and no end of a statement.
BETWEEN = re.compile(r"[^;{}\x00]{0,160}\Z")
ANYTHING, BORDER = "\x01", "\x02"


def documents(root):
    return [p for p in sorted(root.rglob("*.md"))
            if not any(part.startswith(("build", ".")) for part in p.relative_to(root).parts[:-1])]


def words_in_code(text):
    for block, span in CODE.findall(text):
        for word in (block or span).split():
            yield word.strip("()[],;:'\"")


def anchors(text):
    """Of headings, as GitHub makes them."""
    for title in re.findall(r"^#+ (.*)$", text, re.M):
        yield re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def check_links(root, path, text):
    for target in LINK.findall(text):
        file, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = path.parent / file if file else path
        if not there.exists():
            yield f"links to {target}, which does not exist"
        elif anchor and anchor not in anchors(there.read_text(encoding="utf-8")):
            yield f"links to {target}, a heading that does not exist"


def check_pictures(root, path, text):
    pictures = PICTURE.findall(text)
    if not pictures and str(path.relative_to(root)) in PICTURED:
        yield "has no picture"
    for words, target in pictures:
        if not DRAWN.fullmatch(os.path.relpath(path.parent / target, root)):
            yield f"shows {target}, which no test compares with what a tool draws"
        if not words.strip():
            yield f"shows {target} without words for those who do not see it"


def exists(root, name):
    name = name.rstrip("/")
    if re.search(r"[$<>{}…]|\.\.\.", name):
        return True  # a pattern for people
    if any(root.glob(name)):
        return True
    return any(root.glob(name + ".*"))  # a pair of .h and .cc


def made_there(root, name):
    """Whether build/FOLDER/.../FILE may be made by a meson.build on the way."""
    folder, file = (root / name).parent, pathlib.PurePath(name).name
    stem = re.sub(r"^lib|\.so(\.\d+)*$", "", file)
    while folder != root and root in folder.parents:
        meson = folder / "meson.build"
        if meson.is_file() and re.search(rf"'(?:lib)?{re.escape(stem)}(?:\.so[.\d]*)?'",
                                         meson.read_text(encoding="utf-8")):
            return True
        folder = folder.parent
    return False


def check_paths(root, path, text):
    for word in words_in_code(text):
        word = re.sub(r"^(\./|\$PWD/|NCCL_NET_PLUGIN=(\$PWD/)?)", "", word)
        built = re.match(r"build[\w-]*/((?:%s)/.+)" % "|".join(map(re.escape, TOP)), word)
        if built:
            name = re.sub(r":.*", "", built.group(1)).rstrip("/")
            if not (root / name).is_dir() and not made_there(root, name):
                yield f"names {word}, which no meson.build makes"
        elif re.match(r"(?:%s)/[\w.]" % "|".join(map(re.escape, TOP)), word):
            name = re.sub(r":\d+$", "", word).split("=")[0]
            if not exists(root, name):
                yield f"names {word}, which does not exist"


def check_settings(known, text):
    for name in sorted(set(SETTING.findall(text)) - known - OWN):
        if name not in ("TWINPATH_TEST_",):
            yield f"names {name}, which is no setting (plugin/base/options.cc)"


def messages(source):
    """The texts of a source file: literals of one expression joined, borders between others."""
    source = COMMENT.sub(lambda m: m.group(1) or "", source)
    out, end = [], None
    for literal in LITERAL.finditer(source):
        if end is not None:
            gap = source[end:literal.start()]
            out.append("" if not gap.strip() else ANYTHING if BETWEEN.match(gap) else BORDER)
        out.append(CONVERSION.sub(ANYTHING, literal.group(1)).replace("%%", "%").replace('\\"', '"'))
        end = literal.end()
    return "".join(out)


def pattern(quoted):
    pieces = [re.escape(piece) for piece in quoted.split("…")]
    return re.compile(f"[^{BORDER}]{{0,200}}?".join(pieces))


def quoted_messages(text):
    in_table = False
    for line in text.splitlines():
        if re.match(r"\| (message|line) has \|", line):
            in_table = True
        elif not line.startswith("|"):
            in_table = False
        elif in_table and not line.startswith("|-"):
            first = line.split("|")[1].strip()
            found = re.fullmatch(r"`([^`]+)`", first)
            yield found.group(1) if found else None, first


def check_messages(texts, text):
    for quoted, cell in quoted_messages(text):
        if quoted is None:
            yield f"has {cell!r} in a table of messages; quote one message in backticks"
        elif len(quoted.replace("…", "").strip()) < 8:
            yield f"quotes {quoted!r}, too little to be found"
        elif not any(pattern(quoted).search(t) for t in texts):
            yield f"quotes {quoted!r}, which no source says"


def check_programs(root, path, text, made):
    named = {w for w in words_in_code(text) if re.fullmatch(r"twinpath-[a-z_]+", w)}
    if path == root / "README.md":
        table = re.search(r"^\| program \|.*\n\|[-|]*\n((?:\|.*\n)+)", text, re.M)
        if not table:
            yield "has no table of programs"
        for cell in re.findall(r"^\| `([^`]+)`", table.group(1) if table else "", re.M):
            if "/" in cell:
                if not (root / cell).exists():
                    yield f"names the program {cell}, which does not exist"
            else:
                named.add(cell)
    for name in sorted(named - made):
        yield f"names the program {name}, which Meson does not make"


def check_installed(root, files):
    """`files` are paths below share/doc/twinpath, which are those of the tree."""
    for name in sorted(f for f in files if f.endswith(".md") and (root / f).is_file()):
        for target in LINK.findall((root / name).read_text(encoding="utf-8")):
            file = target.partition("#")[0]
            there = (root / name).parent / file
            if file and not re.match(r"[a-z]+:", target) and there.resolve().is_relative_to(root.resolve()):
                if str(there.resolve().relative_to(root.resolve())) not in files:
                    yield f"{name}: links to {target}, and is installed without it"


def check(root):
    options = (root / "plugin/base/options.cc").read_text(encoding="utf-8")
    known = set(re.findall(r'"(TWINPATH_[A-Z0-9_]+)"', options))
    meson = "\n".join(p.read_text(encoding="utf-8") for f in TOP if (root / f).is_dir()
                      for p in (root / f).rglob("meson.build"))
    made = set(re.findall(r"executable\(\s*'([\w-]+)'", meson))
    files = (root / "tools/package/files").read_text(encoding="utf-8")
    made |= set(re.findall(r"(?m)^(?:\? )?bin/([\w-]+)", files))
    texts = [messages(p.read_text(encoding="utf-8", errors="replace")) for f in SOURCES
             for suffix in ("*.cc", "*.h") for p in sorted((root / f).rglob(suffix))]
    wrong = list(check_installed(root, set(re.findall(r"(?m)^share/doc/twinpath/(\S+)", files))))
    lines = (root / "README.md").read_text(encoding="utf-8").count("\n")
    if lines > MOST_LINES:
        wrong.append(f"README.md: has {lines} lines, more than {MOST_LINES}")
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        for found in (check_links(root, path, text), check_paths(root, path, text),
                      check_settings(known, text), check_messages(texts, text),
                      check_programs(root, path, text, made), check_pictures(root, path, text)):
            wrong += [f"{path.relative_to(root)}: {w}" for w in found]
    return wrong


GOOD = """# Title
![a host](test/golden/topo/host.svg)
[there](plugin/there.md#all-there-is) and [here](#title), `plugin/base/options.cc`, `TWINPATH_FABRIC`, `build/tools/prog`.

| message has | meaning |
|---|---|
| `no … was found: …` | none |
| `life of … ms, gone` | dead |

| program | does |
|---|---|
| `prog` | all |
| `tools/run` | more |
"""
SOURCE = """// "a comment that is no message"
TP_WARN("no usable %s was "
        "found: %s", a, b);
return "signs of life of " + std::to_string(ms()) + " ms, gone";
const char* other = "end"; f("apart");
"""
BAD = {"more than 200": lambda t: t + "\n" * 200,
       "nowhere.md": lambda t: t.replace("there.md", "nowhere.md"),
       "is installed without it": lambda t: t.replace("plugin/there.md#all-there-is", "plugin/alone.md"),
       "has no picture": lambda t: t.replace("![a host](test/golden/topo/host.svg)", ""),
       "shows plugin/drawn.svg, which no test": lambda t: t.replace("test/golden/topo/host", "plugin/drawn"),
       "without words": lambda t: t.replace("![a host]", "![]"),
       "a heading that": lambda t: t.replace("#all-there", "#nothing-there"),
       "#titel, a heading": lambda t: t.replace("#title", "#titel"),
       "names plugin/base/no.cc": lambda t: t.replace("options.cc`", "options.cc` `plugin/base/no.cc`"),
       "no meson.build makes": lambda t: t.replace("build/tools/prog", "build/tools/none"),
       "is no setting": lambda t: t.replace("TWINPATH_FABRIC", "TWINPATH_FABRICK"),
       "which no source says": lambda t: t.replace("no … was found", "no … is found"),
       "quotes 'a comment": lambda t: t.replace("no … was found: …", "a comment that is no message"),
       "quotes 'end…apart": lambda t: t.replace("no … was found: …", "end…apart"),
       "quote one message": lambda t: t.replace("`no … was found: …`", "nothing at all"),
       "too little": lambda t: t.replace("no … was found: …", "no …"),
       "Meson does not make": lambda t: t.replace("| `prog`", "| `frog`"),
       "the program twinpath-nothing": lambda t: t + "`sudo twinpath-nothing --all`\n",
       "the program tools/walk": lambda t: t.replace("`tools/run`", "`tools/walk`")}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve() / "tree"
        for name, text in {"plugin/there.md": "# All, there is\n", "plugin/alone.md": "", "tools/run": "",
                           "plugin/base/options.cc": 'Option{"TWINPATH_FABRIC"};', "plugin/a.cc": SOURCE,
                           "tools/meson.build": "executable('prog', 'a.cc')\n",
                           "tools/package/files": "? bin/twinpath-linked -> bin/prog\n"
                           "share/doc/twinpath/README.md\nshare/doc/twinpath/plugin/there.md\n"
                           "share/doc/twinpath/test/golden/topo/host.svg\n",
                           "test/golden/topo/host.svg": "", "plugin/drawn.svg": "",
                           "build/not.md": "[no](nowhere)"}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        (root / "README.md").write_text(GOOD + "`twinpath-linked`\n", encoding="utf-8")
        assert check(root) == [], check(root)
        for word, change in BAD.items():
            assert change(GOOD) != GOOD, word
            (root / "README.md").write_text(change(GOOD), encoding="utf-8")
            found = check(root)
            assert any(word in w for w in found), (word, found)
    print("documents.py finds what it should")


def main(argument):
    if argument == "--self-test":
        return self_test()
    wrong = check(pathlib.Path(argument).resolve())
    print("\n".join(wrong) or "the documents name what there is")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
