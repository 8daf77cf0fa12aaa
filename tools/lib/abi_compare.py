"""What of an NCCL's ABI this plugin does not serve, and where its structs are laid out otherwise.

Tables and the structs that their functions take have NCCL's names in our sources, too, and are
compared with everything that they point to.  What kernels read has names of ours: FIELDS says which
of our fields each of NCCL's is, so that one that is new there is told even where we have padding.
"""
import re

import layouts

# {NCCL's field: ours}.  "zero_rq[]": it lies somewhere within that one.
CQ = {"cqe_daddr": "cqes", "cq_num": "number", "cqe_num": "depth", "dbrec": "dbrec",
      "cqe_ci": "consumed", "cqe_mask": "mask", "cqe_size": "log_cqe_bytes", "cq_type": "zero0[]",
      "cqe_rsvd": "index_offset", "mem_type": "memory"}
RQ = ("rq_num", "rq_wqe_pi", "rq_wqe_num", "rq_wqe_mask", "rq_wqe_daddr", "rq_dbrec",
      "rcv_wqe_size", "rq_rsvd_index", "rq_ready_index", "rq_lock")
QP = {"sq_rsvd_index": "reserved", "sq_ready_index": "ready", "sq_wqe_pi": "rung", "sq_num": "qpn",
      "sq_num_shift8": "qpn_shift8", "sq_num_shift8_be": "qpn_shift8_be",
      **{f"sq_num_shift8_be_{n}ds": "qpn_ds_be[]" for n in range(1, 6)},
      "sq_lock": "lock", "sq_wqe_num": "depth", "sq_wqe_mask": "mask", "sq_wqe_daddr": "sq",
      "sq_dbrec": "dbrec", "sq_db": "doorbell", **{name: "zero_rq[]" for name in RQ},
      **{f"cq_sq.{name}": f"cq.{ours}" for name, ours in CQ.items()},
      **{f"cq_rq.{name}": f"zero_cq.{ours}" for name, ours in CQ.items()},
      "nic_handler": "nic_handler", "mem_type": "memory"}
TABLE = {"buffer": "buffer", "rkeys": "rkeys_be", "lkey": "lkey_be", "offset": "offset"}
CONTEXT = {"gdqp": "queues", "companion_gdqp": "companions",
           **{f"counters_table.{name}": f"counters.{ours}" for name, ours in TABLE.items()},
           **{f"signals_table.{name}": f"signals.{ours}" for name, ours in TABLE.items()},
           "sink_buffer_lkey": "sink_lkey_be", "use_mcst": "reads_sink",
           "last_issued_get": "last_issued_get", "last_visible_get": "last_visible_get"}
FIELDS = {"doca_gpu_dev_verbs_qp": QP, "ncclGinGdakiGPUContext": CONTEXT,
          "ncclGinGdakiGPUContext_v1": CONTEXT,
          "ncclGinGdakiMemHandle": {"rkeys": "rkeys_be", "lkey": "lkey_be"}}
OURS = ("DeviceQp28", "DeviceQp30", "DeviceContext72", "DeviceContext88", "DeviceWindow")


def filled_for(gin, version):
    """{NCCL's struct: which of ours is filled by the GIN table and for the release that calls}."""
    old = gin < 14 and version < (2, 30)
    return {"doca_gpu_dev_verbs_qp": "DeviceQp28" if old else "DeviceQp30",
            "ncclGinGdakiGPUContext": "DeviceContext72" if gin < 14 else "DeviceContext88",
            "ncclGinGdakiGPUContext_v1": "DeviceContext72",  # backendVersion 0 and 1
            "ncclGinGdakiMemHandle": "DeviceWindow"}


def text_of(field):
    name, offset, size, _ = field
    return f"{name} at {offset}, {size} B"


def at_place(fields, offset, size):
    """What lies there, in words."""
    found = [text_of(f) for f in fields if f[1] < offset + size and offset < f[1] + f[2]]
    return " and ".join(found) or "nothing"


def device_differences(name, theirs, our_name, ours):
    """Lines for a struct that kernels read."""
    lines = [] if theirs["size"] == ours["size"] else [
        f"{name}: {theirs['size']} B, {our_name} has {ours['size']}"]
    by_name = {field[0]: field for field in ours["fields"]}
    for field in theirs["fields"]:
        if "reserved" in field[0]:
            continue
        meant = FIELDS[name].get(field[0])
        _, offset, size, _ = field
        place = by_name.get((meant or "").removesuffix("[]"))
        if place is not None:
            inside = place[1] <= offset and offset + size <= place[1] + place[2]
            if inside if meant.endswith("[]") else place[1:3] == [offset, size]:
                continue
        known = f", which is {meant.removesuffix('[]')}" if meant else ", not known here"
        lines.append(f"{name}.{text_of(field)}{known}: "
                     f"{our_name} has {at_place(ours['fields'], offset, size)}")
    return lines


def plain(kind):
    """A kind without the names of structs."""
    return re.sub(r"\*[A-Za-z_]\w*", "*", kind)


class HostComparison:
    def __init__(self, theirs, ours):
        self.theirs, self.ours, self.done, self.lines = theirs, ours, set(), []

    def compare(self, name, our_name, is_table):
        if (name, our_name) in self.done:
            return
        self.done.add((name, our_name))
        theirs, ours = self.theirs[name], self.ours[our_name]
        # Of a table NCCL reads as much as it knows; other structs are its own.
        if theirs["size"] > ours["size"] or (theirs["size"] != ours["size"] and not is_table):
            self.lines.append(f"{name}: {theirs['size']} B, ours {ours['size']}")
        same = {field[1]: field for field in ours["fields"]}
        for field in theirs["fields"]:
            self.compare_field(name, field, same.get(field[1]), ours)

    def compare_field(self, name, field, other, ours):
        if other is None or other[:3] != field[:3]:
            self.lines.append(f"{name}.{text_of(field)}: ours has "
                              f"{at_place(ours['fields'], field[1], field[2])}")
        elif plain(field[3]) != plain(other[3]) and "*" not in (field[3], other[3]):
            self.lines.append(f"{name}.{field[0]} is {plain(field[3])}, ours {plain(other[3])}")
        else:
            pairs = zip(layouts.pointed_to(field[3]), layouts.pointed_to(other[3]))
            for struct, our_struct in pairs:
                if struct and our_struct:
                    self.compare(struct, our_struct, False)


def versions(symbol, numbers):
    return ", ".join(f"{symbol}_v{number}" for number in numbers)


def table_name(family, number):
    return f"{family.removesuffix('Plugin')}_v{number}_t"


def asked_lines(facts, exported):
    """(lines of what is used, lines of what is not served, the GIN table that is used)."""
    used, unserved, gin = [], [], None
    for family, asked in facts["asks"].items():
        served = [number for number in asked if number in exported.get(family, [])]
        best = max(served, default=None)
        if best is not None:
            used.append(f"{family}_v{best}")
        if family == "ncclGinPlugin":
            gin = best
        newer = [number for number in asked if best is None or number > best]
        if newer:
            unserved.append(f"not served: {versions(family, newer)}")
    return used, unserved, gin


def host_lines(facts, ours, exported):
    """What differs in the tables that both have, and in what their functions take."""
    host = HostComparison(facts["structs"], ours)
    for family, asked in facts["asks"].items():
        for number in asked:
            name = table_name(family, number)
            if number not in exported.get(family, []):
                continue
            if name in facts["structs"]:
                host.compare(name, name, True)
            else:
                host.lines.append(f"{name}: no debug information says how it is laid out")
    return host.lines


def device_lines(facts, ours, gin):
    """What differs in what kernels read, if they find us by that GIN table."""
    version = tuple(int(number) for number in facts["version"].split("."))
    filled, structs = filled_for(gin, version), facts["structs"]
    lines = [f"{name} is not there: what kernels read has changed" for name in filled
             if name not in structs and name != "ncclGinGdakiGPUContext_v1"]
    for name in sorted(structs):
        if name in filled:
            lines += device_differences(name, structs[name], filled[name], ours[filled[name]])
        elif name.startswith("ncclGinGdaki"):
            lines.append(f"not served: kernels with {name}")
    if facts["gdaki"] not in (None, 100, 200):
        lines.append(f"not served: device structs of version {facts['gdaki']}")
    return lines


def report(facts, ours, exported):
    """(the tables that one release takes of ours, lines of whatever is not as it wants)."""
    used, lines, gin = asked_lines(facts, exported)
    lines += host_lines(facts, ours, exported)
    if gin is not None:
        lines += device_lines(facts, ours, gin)
    return f"NCCL {facts['version']} takes {', '.join(used) or 'nothing'}", lines
