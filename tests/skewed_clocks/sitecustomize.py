"""Python runs this at start where the folder is on PYTHONPATH: hosts whose clocks are wrong.

Each role is on a host of its own, minutes off in its own direction; Postgres and broker are not.
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
