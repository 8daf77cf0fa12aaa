#!/usr/bin/env python3
"""Reads an archive of tools/bringup.sh: steps, and what of it contradicts the device model (`rules`).

Exit status: 0 nothing does, 1 something does, 2 it is no such archive."""
import json
import pathlib
import re
import signal
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
MOST = 64 << 20  # of one file: an archive may be anybody's
HEADERS = {"capabilities": 16, "ours": 24, "beside": 24}
OPCODE_QUERY_QP, STATE_RTS = 0x50b, 3
ROCE, PORT_TYPE, ETHERNET = "0x4", "0x34:9-8", 1


def rules():
    for line in (HERE / "rules").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield [cell.strip() for cell in line.split("|", 4)]


class Archive:
    def __init__(self, path):
        self.files = {}
        with tarfile.open(path) as tar:
            for m in tar:
                if m.isfile() and m.size <= MOST and m.name.endswith((".json", ".jsonl")):
                    self.files[pathlib.PurePath(m.name).name] = tar.extractfile(m).read().decode(errors="replace")
        self.summary = json.loads(self.files["summary.json"])
        self.devices = json.loads(self.files.get("evidence.json") or '{"devices": []}')["devices"]
        self.commands = [json.loads(line) for name, text in sorted(self.files.items())
                         if name.endswith(".jsonl") for line in text.splitlines()]
        self.commands = [c for c in self.commands if len(c.get("in", "")) >= 32 and c.get("out")]

    def queues(self):
        """Answers of QUERY_QP to us of queues that are ready, or that should be."""
        return [bytes.fromhex(c["out"]) for c in self.commands
                if int(c["in"][:4], 16) == OPCODE_QUERY_QP and c.get("result") == 0]


def field(answer, header, where):
    """BYTE:HIGH-LOW of what is behind the header."""
    byte, high, low = (int(x, 0) for x in re.fullmatch(r"(\w+):(\d+)-(\d+)", where).groups())
    word = int.from_bytes(answer[header + byte:header + byte + 4], "big")
    return word >> low & (1 << high - low + 1) - 1


def observations(archive, source, where):
    """What was seen for a rule: (whose, value)."""
    kind, *more = source.split()
    if kind == "capabilities":
        for d in archive.devices:
            pages = d.get("capabilities", {})
            page, general = pages.get(more[0], {}), pages.get("0x0", {})
            if more[0] == ROCE and general and field(bytes.fromhex(general["out"]), 16, PORT_TYPE) != ETHERNET:
                continue
            if page.get("result") == 0:
                yield d["name"], field(bytes.fromhex(page["out"]), HEADERS[kind], where)
    elif kind == "registrations":
        for d in archive.devices:
            if where in d.get("registrations", {}):
                yield d["name"], d["registrations"][where]
    elif kind == "ours":
        ready = [q for q in archive.queues() if field(q, HEADERS[kind], "0x00:31-28") == STATE_RTS]
        # Were none ready, the first says in which state it stayed.
        for value in sorted({field(q, HEADERS[kind], where) for q in ready or archive.queues()[:1]}):
            yield "a queue of ours", value
    elif kind == "commands":
        statuses = {int(c["out"][:2], 16) or (1 if c.get("result") else 0) for c in archive.commands
                    if int(c["in"][:4], 16) == int(where, 0)}
        for status in sorted(statuses):
            yield "the adapter", status


def beside(archive, where):
    """Pairs of a field of ours and of a queue pair that libibverbs made."""
    theirs = [bytes.fromhex(d["queue_pair"]["out"]) for d in archive.devices
              if d.get("queue_pair") and d["queue_pair"]["result"] == 0]
    ours = {field(q, HEADERS["beside"], where) for q in archive.queues()}
    for value in sorted({field(q, HEADERS["beside"], where) for q in theirs}):
        for own in sorted(ours):
            yield own, value


def holds(relation, value, seen):
    if relation == "=":
        return str(seen) == value
    return seen >= int(value)


def judge(archive):
    """(name, verdict, text) of each rule; a rule that two observations contradict is named once."""
    for name, source, where, claim, why in rules():
        relation, *value = claim.split()
        if source == "beside":
            pairs = list(beside(archive, where))
            wrong = [f"a queue of ours has {a}, libibverbs's {b}" for a, b in pairs if a != b]
        else:
            pairs = list(observations(archive, source, where))
            wrong = [f"{who} says {seen}, the model {claim}" for who, seen in pairs
                     if not holds(relation, value[0], seen)]
        verdict = "contradicted" if wrong else "holds" if pairs else "not seen"
        yield name, verdict, f"{wrong[0]}: {why}" if wrong else why


def main(path):
    try:
        archive = Archive(path)
        judged = list(judge(archive))
        steps = archive.summary["steps"]
    except OSError as error:
        print(f"bringup.sh: --read {path}: {error.strerror or error}", file=sys.stderr)
        return 2
    except (tarfile.TarError, KeyError, ValueError, TypeError, AttributeError):
        print(f"bringup.sh: --read {path}: no archive of tools/bringup.sh, or a damaged one", file=sys.stderr)
        return 2
    for s in steps:
        print(f"{s['result']:8} step {s['step']:4} {s['title']}{': ' if s['detail'] else ''}{s['detail']}")
    for name, verdict, text in judged:
        if verdict != "holds":
            print(f"{verdict:12} {name:20} {text}")
    count = {v: sum(1 for _, verdict, _ in judged if verdict == v) for v in ("holds", "contradicted", "not seen")}
    print(f"{count['holds']} rules of the model hold, {count['contradicted']} are contradicted, "
          f"of {count['not seen']} nothing was seen")
    return 1 if count["contradicted"] else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} ARCHIVE", file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has seen enough is no fault
    sys.exit(main(sys.argv[1]))
