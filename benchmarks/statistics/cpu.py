"""CPU seconds and resident memory of process trees, from /proc.

A tree's CPU is user plus system time of its live processes and of their reaped children, so that a
finished Postgres backend is counted. The clock ticks 100 times a second: a run must take seconds
for the figure of a small role to be accurate.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.background_threads import background_threads

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.5

_PROC = Path("/proc")
_MEMORY_FIELDS = ("RssAnon", "RssFile", "RssShmem")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    cpu_s: float  # of the process and its reaped children


def parse_stat(text: str) -> Process:
    """Parse `/proc/PID/stat`; the command's name may contain blanks and brackets."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    ticks = sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    return Process(int(pid), int(fields[1]), ticks * TICK_S)


def process_table() -> dict[int, Process]:
    """Return every readable process."""
    table = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                process = parse_stat((entry / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has ended
            table[process.pid] = process
    return table


def process_trees(
    roots: Mapping[str, int], table: Mapping[int, Process]
) -> dict[str, list[Process]]:
    """Return each root with its descendants, without the trees of other roots."""
    others = set(roots.values())
    found = {role: [table[pid]] if pid in table else [] for role, pid in roots.items()}
    for processes in found.values():
        for process in processes:  # grows during the iteration
            processes += [
                child
                for child in table.values()
                if child.parent == process.pid and child.pid not in others
            ]
    return found


def child_pids(parent: int) -> list[int]:
    """Return the process ids of the children of `parent`."""
    return [process.pid for process in process_table().values() if process.parent == parent]


def cpu_by_role(roots: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds so far of the tree below each root."""
    found = process_trees(roots, process_table())
    return {role: sum(p.cpu_s for p in processes) for role, processes in found.items()}


def cpu_used(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the CPU seconds of each role between two readings."""
    return {role: after[role] - before[role] for role in before}


def resident_by_role(roots: Mapping[str, int]) -> dict[str, int]:
    """Return the resident bytes of each tree; shared pages within a tree count once."""
    found = process_trees(roots, process_table())
    return {role: _resident([p.pid for p in processes]) for role, processes in found.items()}


def parse_memory(text: str) -> tuple[int, int, int]:
    """Return anonymous, file and shared bytes of `/proc/PID/status`."""
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    anonymous, file, shared = (int(lines.get(f, "0 kB").split()[0]) for f in _MEMORY_FIELDS)
    return anonymous * 1024, file * 1024, shared * 1024


def _resident(pids: list[int]) -> int:
    """Private memory adds up; of file and shared memory the largest process stands for all."""
    parts = []
    for pid in pids:
        try:
            parts.append(parse_memory((_PROC / str(pid) / "status").read_text()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    if not parts:
        return 0
    anonymous, file, shared = zip(*parts, strict=True)
    resident: int = sum(anonymous) + max(file) + max(shared)
    return resident


@contextmanager
def peak_memory(roots: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Yield the peak resident bytes of each tree during a block, sampled every 0.5 s."""
    peak = resident_by_role(roots)

    def sample() -> None:
        for role, resident in resident_by_role(roots).items():
            peak[role] = max(peak[role], resident)

    def watch(stop: threading.Event) -> None:
        while not stop.wait(SAMPLE_S):
            sample()

    with background_threads(watch):
        yield peak
    sample()
