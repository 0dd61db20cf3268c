"""The stages of an item, and how long it spent in each. Pure.

    gateway ─► intake ─► queue ─► batch wait ─► execution ─► result

Gateway: from the acceptance of the job until it is validated. Intake: until the item is on the log
(`requests`) for the last time. Queue: on the log, until a batcher has read it. Batch wait: in the
batcher. Execution: in the engine, its queue included. Result: from the answer to the row.

Times that two machines take part in are differences of their clocks, so they are 0 at least.
"""

from enum import StrEnum
from typing import Final, NamedTuple

STAGE_MS_MAX: Final = 2**31 - 1
"""Longest time of a stage in a record or a row: 24 days."""

STAGE_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 1000, 10_000)


class Stage(StrEnum):
    """A stage of an item."""

    GATEWAY = "gateway"
    INTAKE = "intake"
    QUEUE = "queue"
    BATCH_WAIT = "batch_wait"
    EXECUTION = "execution"
    RESULT = "result"


class StageTimes(NamedTuple):
    """Times of one execution, in whole milliseconds."""

    queue_ms: int = 0
    batch_wait_ms: int = 0
    execution_ms: int = 0
    ended_ms: int = 0  # by the replica's clock, since the epoch; 0: unknown


NO_STAGE_TIMES: Final = StageTimes()


def whole_ms(seconds: float) -> int:
    """Return a time as a stage has it: in milliseconds, within 0 and `STAGE_MS_MAX`."""
    return max(0, min(STAGE_MS_MAX, int(1000 * seconds)))
