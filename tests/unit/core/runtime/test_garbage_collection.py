"""Goal: collections are rare and skip the objects that exist; later garbage is collected."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from core.runtime.garbage_collection import collect_rarely, exclude_present_objects

class Node: pass

def cycle():
    node = Node()
    node.self = node
    return weakref.ref(node)

collect_rarely()
print(gc.get_threshold()[0], gc.isenabled())
before = cycle()
exclude_present_objects()
print(before(), gc.get_freeze_count() > 0)
after = cycle()
gc.collect()
print(after())
"""

IMPORTS = """
import gc
from core.runtime.garbage_collection import uncollected_imports

frozen = gc.get_freeze_count()
with uncollected_imports():
    with uncollected_imports():
        import json
    print(gc.isenabled(), gc.get_freeze_count() == frozen)
print(gc.isenabled(), gc.get_freeze_count() > frozen)
"""


def output_of(program: str) -> str:
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout


def test_later_garbage_is_collected() -> None:
    assert output_of(PROGRAM) == "50000 True\nNone True\nNone\n"


def test_imported_modules_are_never_searched_for_garbage() -> None:
    assert output_of(IMPORTS) == "False True\nTrue True\n"
