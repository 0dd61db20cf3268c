"""How often a role looks for garbage that counting references does not free."""

import gc
from typing import Final

_YOUNG_OBJECTS_MAX: Final = 50_000
"""Allocations between two collections; Python's own default is 700."""

_YOUNG_ROUNDS, _MIDDLE_ROUNDS = 20, 20


def tune_garbage_collector() -> None:
    """Never look again at what is loaded by now, and at the rest less often.

    What an item or a call leaves is freed without collections. Each of them walks the rows or
    records that are held meanwhile, none of which is garbage: up to 20 % of an item's CPU, and
    a stop of every stream of an api.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS_MAX, _YOUNG_ROUNDS, _MIDDLE_ROUNDS)
