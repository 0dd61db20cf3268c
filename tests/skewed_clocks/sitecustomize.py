"""Shifts the wall clocks of roles; Python imports it at start from the PYTHONPATH.

Each role seems to run on a host of its own whose clock is minutes off. The clocks of Postgres and
the broker are correct.
"""

import sys
import time

OFFSETS_S = {"gpu_consumers": 400.0, "batcher": -400.0, "jobs": 250.0, "results": -250.0}

_wall_s = time.time
_offset_s = next((s for module, s in OFFSETS_S.items() if module in sys.orig_argv), 0.0)


def _skewed_s() -> float:
    return _wall_s() + _offset_s


if _offset_s:
    time.time = _skewed_s
