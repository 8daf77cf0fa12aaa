"""Layouts of structs, from what dwarf.py reads: how large, and which field lies where.

    read(library, {"ncclGin_v14_t"})
        ->  {"ncclGin_v14_t": {"size": 136, "fields": [["name", 0, 8, "*"], ...]}, ...}

Structs that a wanted one points to, in arguments of functions too, come with it.  A field is
[name, offset, size, kind]; of a member that is a struct its own fields are given, as `cq.depth`.
Kinds: "i" a whole number, bool or enum of either sign; "f" a floating one; "*" a pointer, with the
struct's name behind it where it leads to one; "a" an array; "u" a union (what these two hold is not
looked at); "b" bits, with the bytes that they touch; "(i4: *, i8)" a pointer to a function, with
kinds and sizes of its result and arguments.
"""
import re

import dwarf

THROUGH = (dwarf.TAG_CONST, dwarf.TAG_VOLATILE, dwarf.TAG_TYPEDEF)
STRUCTS = (dwarf.TAG_STRUCT, dwarf.TAG_CLASS)


class Layouts:
    def __init__(self, types):
        self.types, self.made, self.seen = types, {}, {}

    def bare(self, at):
        """(entry behind typedefs and qualifiers, the outermost name); None for void."""
        name = None
        while at is not None:
            entry = self.types.entry(at)
            name = name or self.types.name(entry)
            if entry.tag not in THROUGH:
                return entry, name
            at = entry.get(dwarf.TYPE)
        return None, None

    def kind(self, at):
        """(kind, size) of the type there."""
        entry, _ = self.bare(at)
        size = entry.get(dwarf.SIZE, 8)
        if entry.tag in (dwarf.TAG_POINTER, dwarf.TAG_REFERENCE):
            return self.pointer(entry), 8
        if entry.tag == dwarf.TAG_ARRAY:
            return "a", self.array_size(entry)
        if entry.tag == dwarf.TAG_BASE:
            return ("f" if entry.get(dwarf.ENCODING) == 4 else "i"), size
        return {dwarf.TAG_ENUM: "i", dwarf.TAG_UNION: "u"}.get(entry.tag, "?"), size

    def pointer(self, entry):
        target, name = self.bare(entry.get(dwarf.TYPE))
        if target is None:
            return "*"
        if target.tag == dwarf.TAG_SUBROUTINE:
            return self.signature(target)
        if target.tag in (dwarf.TAG_POINTER, dwarf.TAG_REFERENCE):
            return "*" + self.pointer(target)
        if target.tag in STRUCTS and name and dwarf.DECLARATION not in target.values:
            self.add(name, target)
            return "*" + name
        return "*"

    def signature(self, entry):
        def word(at):
            kind, size = self.kind(at)
            return kind if kind[0] in "*(" else f"{kind}{size}"
        result = word(entry.get(dwarf.TYPE)) if dwarf.TYPE in entry.values else "void"
        arguments = ["..." if child.tag == dwarf.TAG_ELLIPSIS else word(child.get(dwarf.TYPE))
                     for child in self.types.children(entry)]
        return f"({result}: {', '.join(arguments)})"

    def array_size(self, entry):
        size = self.size(entry.get(dwarf.TYPE))
        for child in self.types.children(entry):
            size *= child.get(dwarf.COUNT, child.get(dwarf.UPPER_BOUND, -1) + 1)
        return size

    def size(self, at):
        return self.kind(at)[1]

    def fields(self, entry, prefix="", base=0):
        for child in self.types.children(entry):
            name = prefix + (self.types.name(child) or "")
            if child.tag == dwarf.TAG_MEMBER and dwarf.BIT_OFFSET in child.values:
                first = child.get(dwarf.BIT_OFFSET)
                end = first + child.get(dwarf.BIT_SIZE)
                yield [name, base + first // 8, (end + 7) // 8 - first // 8, "b"]
                continue
            if dwarf.OFFSET not in child.values:
                continue  # a static member, a function, a type
            offset = base + child.get(dwarf.OFFSET)
            inner, _ = self.bare(child.get(dwarf.TYPE))
            if child.tag == dwarf.TAG_BASE_CLASS:
                yield from self.fields(inner, prefix, offset)
            elif inner.tag in STRUCTS:
                yield from self.fields(inner, name + ".", offset)
            else:
                kind, size = self.kind(child.get(dwarf.TYPE))
                yield [name, offset, size, kind]

    def add(self, name, entry):
        if name not in self.made:
            self.made[name] = {"size": entry.get(dwarf.SIZE)}  # a struct may point to itself
            self.made[name]["fields"] = list(self.fields(entry))


def read(data, wanted):
    types = dwarf.Types(data, wanted)
    layouts = Layouts(types)
    for name, at in types.names.items():
        entry, _ = layouts.bare(at)
        if entry is not None and entry.tag in STRUCTS:
            layouts.add(name, entry)
    return layouts.made


def pointed_to(kind):
    """Of each pointer in a kind, in their order, the struct that it leads to, or ""."""
    return re.findall(r"\*+([A-Za-z_]\w*|)", kind)
