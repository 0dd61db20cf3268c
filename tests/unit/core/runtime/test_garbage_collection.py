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


def test_later_garbage_is_collected() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=30
    )
    assert shown.stdout == "50000 True\nNone True\nNone\n"
