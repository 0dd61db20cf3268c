"""One batch in execution: what was asked, what has been answered, and why it was cut short."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from core.errors import EngineOutOfMemoryError, PoolUnavailableError
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.inflight.delivery import Delivery
from topics.clients.offsets import Partition
from topics.records.records import Item, JobRef


class Cut(Enum):
    """Why an execution was cut short; what is answered by then is published in any case."""

    HAND_BACK = "hand back"  # the replica drains, or gives its partition away: the rest goes back
    DROP = "drop"  # its partition has another owner, who has it too
    OVER = "over"  # all its jobs are closed or expired


class Ending(Enum):
    """How an execution ended."""

    ANSWERED = "answered"
    AWAY = "away"  # the pool could not be asked
    CUT = "cut"
    OUT_OF_MEMORY = "out of memory"  # what is not answered was too much at once


@dataclass(slots=True, eq=False)
class BatchRun:
    """A delivery and how far it has come. Positions are those of `items`."""

    delivery: Delivery
    items: list[tuple[JobRef, Item]]
    answers: dict[int, EngineAnswer] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)  # without an answer; their credit is back
    store_away: bool = False  # what needs the object store goes back
    cut: Cut | None = None
    executing: asyncio.Task[None] | None = None  # what a cut ends; nothing between two steps
    parts: list[tuple[JobRef, asyncio.Task[None]]] = field(default_factory=list)  # asked by now
    task: asyncio.Task[None] | None = None  # that runs it from its arrival to its end

    @property
    def place(self) -> Partition:
        """The partition that it lies on."""
        return self.delivery.record.topic, self.delivery.record.partition

    def stop(self, cut: Cut) -> None:
        """Cut it short; the first reason stays."""
        if self.cut is None:
            self.cut = cut
            if self.executing is not None:
                self.executing.cancel()

    def give_up(self, job: JobRef) -> None:
        """End what runs for one part of it; the others go on."""
        for its, task in self.parts:
            if its is job:
                cancel_once(task)

    async def until_cut(self, work: Coroutine[Any, Any, None]) -> Ending:
        """Do what a cut may end; raises what it raises, unless that is an ending."""
        if self.cut is not None:
            work.close()
            return Ending.CUT
        # A task of its own: a cut ends the execution alone, never the publishing after it.
        executing = self.executing = asyncio.create_task(work)
        try:
            await asyncio.wait([executing])
        except asyncio.CancelledError:
            executing.cancel()
            raise
        finally:
            self.executing = None
        if executing.cancelled():
            return Ending.CUT
        failure = executing.exception()
        if failure is None:
            return Ending.ANSWERED
        if not is_ending(failure):
            raise failure
        return Ending.AWAY if isinstance(failure, PoolUnavailableError) else Ending.OUT_OF_MEMORY


def cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel, unless it lets go already: a second cancellation would cut that short."""
    if not task.cancelling():
        task.cancel()


def is_ending(failure: BaseException) -> bool:
    """Whether a batch ends so and its process goes on."""
    return isinstance(failure, PoolUnavailableError | EngineOutOfMemoryError | MemoryError)
