"""Debug information of a library (DWARF 4 and 5 as GCC writes it): the entries of named types.

Only what stands outside of functions is looked at, and reading ends when all names are found, so
that a library of 300 MB takes seconds.  layouts.py makes structs of the entries.
"""
import struct
import zlib

TAG_ARRAY, TAG_CLASS, TAG_ENUM, TAG_MEMBER, TAG_POINTER = 0x01, 0x02, 0x04, 0x0d, 0x0f
TAG_REFERENCE, TAG_STRUCT, TAG_SUBROUTINE, TAG_TYPEDEF = 0x10, 0x13, 0x15, 0x16
TAG_UNION, TAG_ELLIPSIS, TAG_BASE_CLASS, TAG_BASE = 0x17, 0x18, 0x1c, 0x24
TAG_CONST, TAG_VOLATILE, TAG_NAMESPACE = 0x26, 0x35, 0x39
SIBLING, NAME, SIZE, UPPER_BOUND, COUNT = 0x01, 0x03, 0x0b, 0x2f, 0x37
OFFSET, DECLARATION, ENCODING, TYPE = 0x38, 0x3c, 0x3e, 0x49
BIT_SIZE, BIT_OFFSET = 0x0d, 0x6b  # the latter from the struct's begin; DWARF 5

# Bytes of forms that always have as many; references within a unit count from its beginning.
FIXED = {0x01: 8, 0x05: 2, 0x06: 4, 0x07: 8, 0x0b: 1, 0x0c: 1, 0x10: 4, 0x11: 1, 0x12: 2, 0x13: 4,
         0x14: 8, 0x17: 4, 0x19: 0, 0x1e: 16, 0x20: 8, 0x21: 0}
UNIT_REFERENCES = (0x11, 0x12, 0x13, 0x14)
FORM_STRING, FORM_STRP, FORM_LINE_STRP, FORM_SDATA, FORM_UDATA = 0x08, 0x0e, 0x1f, 0x0d, 0x0f
FORM_EXPRESSION, FORM_IMPLICIT = 0x18, 0x21
BLOCKS = {0x03: "<H", 0x04: "<I", 0x0a: "<B"}
NAMED = {TAG_STRUCT, TAG_CLASS, TAG_TYPEDEF}


def sections(data, wanted):
    """{name: bytes} of sections of a 64-bit little-endian ELF file; of those wanted that it has."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a library for a 64-bit little-endian machine")
    offset, = struct.unpack_from("<Q", data, 0x28)
    size, number, names_at = struct.unpack_from("<HHH", data, 0x3a)
    headers = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(number)]
    names = headers[names_at][4]
    found = {}
    for name_at, _, flags, _, at, length in headers:
        name = data[names + name_at:data.index(0, names + name_at)].decode()
        if name in wanted:
            content = data[at:at + length]
            found[name] = zlib.decompress(content[24:]) if flags & 0x800 else content
    return found


def uleb(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def sleb(data, at):
    begin = at
    value, at = uleb(data, at)
    bits = 7 * (at - begin)
    return (value - (1 << bits) if data[at - 1] & 0x40 else value), at


class Entry:
    def __init__(self, offset, tag, children, values):
        self.offset, self.tag, self.children, self.values = offset, tag, children, values

    def get(self, attribute, default=None):
        return self.values.get(attribute, default)


class Types:
    """`data`: the library.  `names` says where the wanted types that it has are described."""

    def __init__(self, data, wanted):
        found = sections(data, (".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str"))
        if ".debug_info" not in found:
            raise ValueError("no debug information")
        self.info, self.abbrev = found[".debug_info"], found[".debug_abbrev"]
        self.strings = {FORM_STRP: found.get(".debug_str", b""),
                        FORM_LINE_STRP: found.get(".debug_line_str", b"")}
        self.tables, self.units, self.names = {}, [], {}
        missing = set(wanted)
        at = 0
        while at < len(self.info) and missing:
            at = self._read_unit(at, missing)

    def _read_unit(self, at, missing):
        length, version = struct.unpack_from("<IH", self.info, at)
        if length >= 0xfffffff0 or version not in (4, 5):
            raise ValueError(f"debug information of version {version} is not understood")
        table_at, = struct.unpack_from("<I", self.info, at + (6 if version == 4 else 8))
        if table_at not in self.tables:
            self.tables[table_at] = self._read_abbreviations(table_at)
        end = at + 4 + length
        self.units.append((at, end, self.tables[table_at]))
        root, first = self._entry(at + (11 if version == 4 else 12))
        if root.children:
            self._index(first, missing)
        return end

    def _read_abbreviations(self, at):
        table = {}
        while True:
            code, at = uleb(self.abbrev, at)
            if code == 0:
                return table
            tag, at = uleb(self.abbrev, at)
            children = self.abbrev[at]
            at += 1
            attributes = []
            while True:
                attribute, at = uleb(self.abbrev, at)
                form, at = uleb(self.abbrev, at)
                implicit = None
                if form == FORM_IMPLICIT:
                    implicit, at = sleb(self.abbrev, at)
                if attribute == form == 0:
                    break
                attributes.append((attribute, form, implicit))
            table[code] = (tag, children, attributes)

    def _value(self, form, implicit, at, unit):
        if form in self.strings:
            offset, = struct.unpack_from("<I", self.info, at)
            return (form, offset), at + 4  # read when somebody asks
        if form in FIXED:
            size = FIXED[form]
            value = implicit if form == FORM_IMPLICIT else size == 0 or int.from_bytes(
                self.info[at:at + size], "little")
            return (value + unit if form in UNIT_REFERENCES else value), at + size
        if form == FORM_STRING:
            end = self.info.index(0, at)
            return self.info[at:end].decode(), end + 1
        if form == FORM_SDATA:
            return sleb(self.info, at)
        if form == FORM_UDATA:
            return uleb(self.info, at)
        if form == FORM_EXPRESSION:
            size, at = uleb(self.info, at)
            return None, at + size
        if form in BLOCKS:
            size, = struct.unpack_from(BLOCKS[form], self.info, at)
            return None, at + struct.calcsize(BLOCKS[form]) + size
        raise ValueError(f"form {form:#x} of debug information is not understood")

    def _entry(self, at):
        """The entry there, None at the end of a list, and where the next begins."""
        begin, _, table = self._unit_of(at)
        code, after = uleb(self.info, at)
        if code == 0:
            return None, after
        tag, children, attributes = table[code]
        values = {}
        for attribute, form, implicit in attributes:
            values[attribute], after = self._value(form, implicit, after, begin)
        return Entry(at, tag, children, values), after

    def _unit_of(self, at):
        unit = self.units[-1]
        if unit[0] <= at < unit[1]:
            return unit
        return next(u for u in self.units if u[0] <= at < u[1])

    def entry(self, at):
        return self._entry(at)[0]

    def children(self, entry):
        if entry.children:
            for child, _ in self._list(self._entry(entry.offset)[1]):
                yield child

    def _list(self, at):
        """(entry, where its own children begin) of a list that begins there."""
        while True:
            child, after = self._entry(at)
            if child is None:
                return
            yield child, after
            at = self._behind(child, after)

    def _behind(self, entry, after):
        if not entry.children:
            return after
        if SIBLING in entry.values:
            return entry.values[SIBLING]
        while True:
            child, after = self._entry(after)
            if child is None:
                return after
            after = self._behind(child, after)

    def _index(self, first, missing):
        for entry, after in self._list(first):
            if entry.tag == TAG_NAMESPACE and entry.children:
                self._index(after, missing)
            elif entry.tag in NAMED and DECLARATION not in entry.values:
                name = self.name(entry)
                if name in missing:
                    missing.discard(name)
                    self.names[name] = entry.offset

    def name(self, entry):
        name = entry.get(NAME)
        if not isinstance(name, tuple):
            return name
        text = self.strings[name[0]]
        return text[name[1]:text.index(0, name[1])].decode()
