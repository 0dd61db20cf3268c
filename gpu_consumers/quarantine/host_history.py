"""Assesses a host by how its processes ended: do items crash them, or does the host? Pure.

A poison item explains its crashes: a batch, a tenth of it, and in the end the item alone. A host
that kills whatever runs on it ends one process after the other without such an explanation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final
from uuid import UUID

from topics.records.attempts import BatchAttempt, ProcessEnd, ReplicaProcess

UNEXPLAINED_ENDS_MAX: Final = 6
"""A host with more unexplained ends is failing. A poison item ends the process in its batch and in
a tenth of it before it runs alone, so three of them at once are not taken for a failing host."""

_ENDS_PER_POISON: Final = 2
"""Ends that a crash of a single item explains, besides that crash."""

SERVED_ROUNDS: Final = 4
"""A process has served when so many times the engine's concurrency of items have ended."""

LONG_LIFE_S: Final = 60.0
"""A process that lives for so long has served and proven its host, whatever ended it."""

PROOF_S_MIN: Final = 1.0
PROOF_S_MAX: Final = 30.0
_PROOF_FACTOR: Final = 3.0
"""A host proves itself by a life of so many times the median of those since it last did."""

REST_STEP_S: Final = 1.0
REST_S_MAX: Final = 60.0
"""A failing host rests for a second more after each further end, up to a minute."""

ENDS_KEPT: Final = 32
"""Ends of processes, and their ids, that a process of the host keeps."""


@dataclass(frozen=True, slots=True)
class HostVerdict:
    """What the ends of a host's processes say about it, for its next process."""

    unexplained_ends: int = 0  # since it has served
    proof_s: float = 0.0  # the life that proves it: then an item is charged that crashed it alone
    long_life_s: float = LONG_LIFE_S  # the life from which earlier ends do not count any more

    @property
    def is_failing(self) -> bool:
        """Whether the host, not the items, is suspect."""
        return self.unexplained_ends > UNEXPLAINED_ENDS_MAX

    @property
    def rest_s(self) -> float:
        """How long the host rests before it accepts work."""
        further = max(0, self.unexplained_ends - UNEXPLAINED_ENDS_MAX)
        return min(REST_S_MAX, REST_STEP_S * further)


TRUSTED: Final = HostVerdict()
"""The verdict on a host of which nothing is known, or which has proven itself."""


def assess_host(ends: Iterable[ProcessEnd]) -> HostVerdict:
    """Return the verdict on a host whose processes ended so, in this order."""
    unexplained = 0
    lives: list[float] = []  # since it has proven itself
    for end in ends:
        if end.has_proven:
            lives = []
        else:
            lives.append(end.lived_s)
        if end.has_proven or end.has_served:
            unexplained = 0
        if end.ran_alone:
            unexplained = max(0, unexplained - _ENDS_PER_POISON)
        else:
            unexplained += 1
    proof_s = _PROOF_FACTOR * median(lives) if lives else 0.0
    proof_s = min(PROOF_S_MAX, max(PROOF_S_MIN, proof_s))
    return HostVerdict(unexplained, proof_s, proof_s if lives else LONG_LIFE_S)


def ends_after(
    ended: ReplicaProcess, attempts: Iterable[BatchAttempt], *, now_s: float
) -> list[ProcessEnd]:
    """Return the ends of a host after a process that does not run any more.

    `attempts` are those that this process recorded last.
    """
    if ended.is_stopped:
        return ended.ends
    lived_s = max(0.0, now_s - ended.ready_s) if ended.ready_s else 0.0
    end = ProcessEnd(lived_s, ended.has_served, ended.has_proven, any(map(ran_alone, attempts)))
    return [*ended.ends, end][-ENDS_KEPT:]


def successors(records: Iterable[BatchAttempt], crashed: UUID) -> dict[UUID, bool]:
    """Return the processes that followed a crashed one on its host, and whether each has served.

    `records` are those of the topic `attempts`.
    """
    return {
        record.batch_id: record.process.has_served or record.process.has_proven
        for record in records
        if record.process is not None and crashed in record.process.predecessors
    }


def ran_alone(attempt: BatchAttempt) -> bool:
    """Return whether a suspect item that was in two crashes ran, and nothing alongside."""
    if not attempt.is_running or attempt.in_company or not attempt.units:
        return False
    return attempt.units[0].count == 1 and attempt.units[0].crashes > 1
