"""Shifts the wall clock of a Python process; Python imports it at start from the PYTHONPATH.

Timers and timeouts use the monotonic clock, which stays correct, as on a real host.
"""

import os
import time

_offset_s = float(os.environ.get("CHAOS_CLOCK_OFFSET_S", "0"))
_wall_s, _wall_ns = time.time, time.time_ns


def _skewed_s() -> float:
    return _wall_s() + _offset_s


def _skewed_ns() -> int:
    return _wall_ns() + int(_offset_s * 1e9)


if _offset_s:
    time.time, time.time_ns = _skewed_s, _skewed_ns
