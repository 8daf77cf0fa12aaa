#!/usr/bin/env python3
"""Writes a manual page from what a program says about itself.

usage: man.py [--about TEXT] [--path PATH] NAME VERSION OUTPUT HELP
       man.py --settings VERSION OUTPUT MARKDOWN

The first form reads what the program NAME prints for --help: the line "Usage:" becomes the synopsis,
lists of options become such lists, what is indented stays as it is, and "Examples:", "Exit status:" and
other lines with a colon become headings.  NAME stands in place of PATH.  The second makes twinpath(7) from
what twinpath-info --markdown prints.  Meson runs the programs, as it knows how where it builds for another
architecture.  An error names what in the text is not understood.
"""
import argparse
import itertools
import pathlib
import re
import sys

PAGES = ["twinpath-net-perf(1)", "twinpath-coll-perf(1)", "twinpath-gda-perf(1)", "twinpath-softhca(1)",
         "twinpath-info(1)", "twinpath-topo(1)", "twinpath-top(1)", "twinpath-exporter(1)", "twinpath(7)"]
TEXT_COLUMN = 26  # of tools/common/arguments.cc, for options that leave room
OPTION = re.compile(r"^ {2,4}(--?\S.*?)(?: {2,}(\S.*))?$")
# One word or two, and a colon somewhere behind them.
HEADING = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)?)([,:].*| \(.*:.*)$")


def roff(text):
    """Text as roff prints it, character by character."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + text if text.startswith(".") else text


def as_it_is(lines):
    while lines and not lines[-1].strip():
        lines.pop()
    return [".nf", *(roff(line) for line in lines), ".fi"]


def tagged(tag, text):
    return [".TP", f".B {roff(tag)}", roff(text)]


def option_list(lines):
    """Option and text, the text beside it or in lines further right."""
    out = []
    for line, following in zip(lines, [*lines[1:], ""]):
        found = OPTION.match(line.replace("{false}", "  "))
        if found and not found[2] and not following.startswith(TEXT_COLUMN * " "):
            out.append([line[:TEXT_COLUMN].strip(), line[TEXT_COLUMN:]])  # one space is between them
        elif found:
            out.append([found[1], found[2] or ""])
        elif line.strip() and out:
            out[-1][1] = f"{out[-1][1]} {line.strip()}".strip()
        elif line.strip():
            raise ValueError(f"no option: {line!r}")
    return [row for option, text in out for row in tagged(option, text)]


def prose(lines):
    """What stands at the margin flows; what is indented stays."""
    out = []
    for indented, group in itertools.groupby(lines, lambda line: line.startswith(" ")):
        out += [".PP", *(as_it_is(list(group)) if indented else map(roff, group))]
    return out


def section(block):
    """The roff of a block of the help text that begins with a heading."""
    heading = HEADING.match(block[0])
    title, rest = heading[1], heading[2].lstrip(" :,").rstrip(" :")
    out = [f".SH {title.upper()}"]
    body = block[1:]
    if title in ("Options", "Positionals"):
        return out + (option_list(body) if title == "Options" else as_it_is(body))
    return out + prose([line for line in [rest, *body] if line])


def blocks_of(text):
    return [block.splitlines() for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]


def program_page(name, about, text):
    parts = re.split(r"(?m)^(?=[Uu]sage: )", text, maxsplit=1)
    if len(parts) != 2:
        raise ValueError("the help has no line that begins with Usage:")
    description, rest = parts
    usage, _, after = rest.partition("\n")
    description = re.sub(rf"^{re.escape(name)}: ", "", description.strip())
    found = about or description.splitlines()[0]
    out = [".SH NAME", f"{roff(name)} \\- {roff(found.strip(' .'))}", ".SH SYNOPSIS",
           f".B {roff(usage.split(': ', 1)[1])}"]
    titles, in_prose = ["DESCRIPTION"], False
    for block in blocks_of(after):
        # A list without a heading, as shell scripts have it.
        if OPTION.match(block[0]):
            out += [".SH OPTIONS", *option_list(block)]
        elif HEADING.match(block[0]):
            out += section(block)
        else:
            out += [] if in_prose else [f".SH {titles.pop() if titles else 'NOTES'}"]
            out += prose(block)
            in_prose = True
            continue
        titles, in_prose = [], False
    return out


def settings_page(markdown):
    out = [".SH NAME", "twinpath \\- network plugin for NCCL",
           ".SH SYNOPSIS", ".B NCCL_NET_PLUGIN=twinpath", ".I PROGRAM",
           ".SH DESCRIPTION",
           "NCCL opens the plugin when it is named, and sends what passes between nodes through it:",
           "over RDMA adapters, or with TWINPATH_FABRIC=soft between the processes of one host over a",
           "software adapter.  With NCCL_DEBUG=INFO lines of the plugin begin with NET/Twinpath.",
           ".SH ENVIRONMENT",
           "A value that is not understood is named in a warning and the default stays.",
           r".BR twinpath\-info (1)", "prints the values in effect."]
    rows = 0
    for line in markdown.splitlines():
        group = re.match(r"\*\*(.*)\*\*$", line)
        cells = [re.sub(r"\\(.)", r"\1", c.strip()) for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if group:
            out.append(f".SS {roff(group[1])}")
        elif len(cells) == 4 and cells[0].startswith("`"):
            name, values, default, text = (c.strip("`") for c in cells)
            out += tagged(name, f"{values}; default {default}.  {text}")
            rows += 1
        elif len(cells) == 2 and cells[0].startswith("`"):  # without effect
            first, *more = re.findall(r"`([^`]*)`", cells[0])
            tag, name, text = tagged(first, cells[1][:1].upper() + cells[1][1:] + ".")
            out += [tag, name, *(line for n in more for line in (".TQ", f".B {roff(n)}")), text]
    if rows == 0:
        raise ValueError("twinpath-info --markdown shows no table")
    return out


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--about", default="")
    parser.add_argument("--path")
    parser.add_argument("--settings", dest="name", action="store_const", const="twinpath")
    if "--settings" not in sys.argv:
        parser.add_argument("name")
    parser.add_argument("version")
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("said", type=pathlib.Path)
    args = parser.parse_args()
    name, text = args.name, args.said.read_text()
    settings = name == "twinpath"
    if args.path:
        text = text.replace(args.path, name)
    try:
        page = settings_page(text) if settings else program_page(name, args.about, text)
    except ValueError as e:
        sys.exit(f"man.py: {name}: {e}")
    number = 7 if settings else 1
    others = ", ".join(roff(p) for p in PAGES if p != f"{name}({number})")
    head = [".\\\" Made by tools/package/man.py from the program's own words.",
            f'.TH {roff(name.upper())} {number} "" "Twinpath {args.version}" "Twinpath"',
            ".nh", ".ad l"]
    args.output.write_text("\n".join([*head, *page, ".SH SEE ALSO", others]) + "\n")


if __name__ == "__main__":
    main()
