#!/usr/bin/env python3
"""Prints how many processors were busy during the last half second, "1.4".

Of others, when nothing of the caller's runs meanwhile.  "0.0" where /proc/stat tells nothing.
"""
import os
import time


def counts(text):
    """(busy, all) in ticks, of the line of all processors in /proc/stat."""
    for line in text.splitlines():
        if line.startswith("cpu "):
            user, nice, system, idle, wait, irq, soft, stolen = (int(n) for n in line.split()[1:9])
            busy = user + nice + system + irq + soft + stolen
            return busy, busy + idle + wait
    return 0, 0


def processors_busy(before, after, processors):
    busy, all_ = (b - a for a, b in zip(counts(before), counts(after)))
    return processors * busy / all_ if all_ > 0 else 0.0


def read():
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    first = read()
    time.sleep(0.5)
    print(f"{processors_busy(first, read(), os.cpu_count() or 1):.1f}")
