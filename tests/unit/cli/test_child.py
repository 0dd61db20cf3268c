"""Goal: what no caller waits for gives way to what callers wait for."""

import os
import sys
from pathlib import Path

from cli.stack.child import Child, spawn
from cli.stack.role_children import CONTROL_PLANE, role_child


def test_a_child_that_gives_way_has_a_lower_priority(tmp_path: Path) -> None:
    waits = (sys.executable, "-c", "import time; time.sleep(60)")
    process = spawn(Child(name="nice", argv=waits, niceness=7), tmp_path)
    try:
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 7
        group = Path(f"/proc/{process.pid}/autogroup")
        if group.exists():
            assert group.read_text().endswith(" nice 7\n")
    finally:
        process.bury()


def test_only_what_serves_callers_keeps_its_priority() -> None:
    children = [role_child(name, role, {}) for name, (role, _, _) in CONTROL_PLANE.items()]
    ahead = {child.name for child in children if child.niceness == 0}
    assert ahead == {"api", "batcher-interactive"}
    assert role_child("gpu-consumer-1", "gpu-consumer", {}).niceness == 0
