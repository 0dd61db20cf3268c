"""How often a process collects garbage: rarely, since reference counting frees most of it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG_OBJECTS_MAX: Final = 50_000
"""Allocations between two collections; Python's default is 700."""

_YOUNG_ROUNDS, _MIDDLE_ROUNDS = 20, 20


def collect_rarely() -> None:
    """Collect garbage only after many allocations.

    Call it before an import of many modules, too: their objects stay, and collections take a fifth
    of the CPU of vLLM's import.
    """
    gc.set_threshold(_YOUNG_OBJECTS_MAX, _YOUNG_ROUNDS, _MIDDLE_ROUNDS)


def exclude_present_objects() -> None:
    """Collect once, and leave everything that is alive now out of later collections."""
    gc.collect()
    gc.freeze()


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Import modules in a block without collections, and leave all objects out of later ones.

    Modules stay until the process ends, and so does the little garbage of their imports. Without
    the block, collections take a tenth to a fifth of the CPU of importing a role. Does nothing
    inside another block, or where collections are disabled.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()
