"""Turns the clock of a collector or worker that was started with this folder on PYTHONPATH: AGENTTRACE_CHAOS_CLOCK names
a file of 8 bytes, the nanoseconds by which time.time and time.time_ns are ahead (little endian, signed).
"""

import mmap
import os
import struct
import sys
import time

if sys.orig_argv[-1] in {"collector", "worker"}:
    with open(os.environ["AGENTTRACE_CHAOS_CLOCK"], "r+b") as file:
        page = mmap.mmap(file.fileno(), 8)
    real_ns = time.time_ns

    def time_ns() -> int:
        return real_ns() + struct.unpack_from("<q", page)[0]

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
