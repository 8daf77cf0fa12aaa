#!/usr/bin/env python3
"""usage: vectors.py RECORD > VECTOR

Turns a record of commands (tools/softhca/run --mlx5 --record) of one process into what test/soft/mlx5
plays to the device model: a line a step, in order, so that objects get the numbers that they had.

  uar (a doorbell page) | umem BYTES PAGE-BYTES | pd, cq or srq NUMBER, of libibverbs
  free NUMBER (a register of that page) | forget NUMBER (a umem)
  create SIZE HEX | modify SIZE HEX | query SIZE HEX | general SIZE HEX    the command, without the zeros
                                                                           that it ends with
  destroy OPCODE-THAT-MADE-IT NUMBER
  next NUMBER    what is made next has it, where that is not one more than the last

Calls that failed are left out, except destructions, which end with "busy".
"""
import json
import sys

FIRST = 0x101
expected = FIRST
pages = set()


def makes(number):
    """Says so where the number is not the next."""
    global expected
    if number != expected:
        print("next", number)
    expected = number + 1


for line in open(sys.argv[1], encoding="utf-8"):
    r = json.loads(line)
    call = r["call"].removeprefix("devx_")
    busy = " busy" if r["rc"] == 16 else ""
    if r["rc"] not in (0, 16) or (busy and call not in ("obj_destroy", "umem_dereg")):
        continue
    if "in" in r:
        if call == "obj_create":
            makes(int(r["out"][16:24], 16))
        text = r["in"].rstrip("0")
        print(call.removeprefix("obj_").removesuffix("_cmd"), len(r["in"]) // 2, text + "0" * (len(text) % 2))
    elif call == "alloc_uar":
        if r["page_id"] not in pages:
            makes(r["page_id"])
            print("uar")
        pages.add(r["page_id"])
    elif call.startswith("umem_reg"):
        makes(r["umem_id"])
        print("umem", r["size"], r["pgsz_bitmap"] & -r["pgsz_bitmap"])
    elif call == "init_obj":
        for kind in ("pd", "cq", "srq"):
            if kind + "n" in r:
                print(kind, r[kind + "n"])
    elif call == "free_uar":
        print("free", r["page_id"])
    elif call == "umem_dereg":
        print("forget", f"{r['umem_id']}{busy}")
    elif call == "obj_destroy":
        print("destroy", r["made_by"], f"{r['object']}{busy}")
