"""Tunes Python's cyclic garbage collector for long-running roles."""

import gc
from typing import Final

_YOUNG_OBJECTS_MAX: Final = 50_000
"""Allocations between two collections; Python's default is 700."""

_YOUNG_ROUNDS, _MIDDLE_ROUNDS = 20, 20


def tune_garbage_collector() -> None:
    """Exclude all present objects from collection, and collect the others less often.

    Reference counting frees what an item or a call leaves. A collection traverses the rows and
    records in memory without finding garbage: up to 20 % of an item's CPU, and a pause of every
    stream of an API process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS_MAX, _YOUNG_ROUNDS, _MIDDLE_ROUNDS)
