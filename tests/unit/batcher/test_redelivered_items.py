"""Goal: chunks wait for a database at most a minute; one that lost commits ends the batcher."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from batcher import commit_watch
from batcher.commit_watch import watch_commits
from batcher.inbound.redelivered_items import FinishedItemLookup
from core.commit_watermark import CommitsLostError
from tests.support.clock import ManualClock
from tests.unit.batcher.builders import buffered, job_ref

CHUNK = buffered(job_ref(), [0])


class Unavailable(sa.Engine):
    """An unreachable database."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.queried_s: list[float] = []

    def connect(self) -> sa.Connection:
        self.queried_s.append(self._clock.now_s - 1000)
        raise OperationalError("", None, Exception())


def test_chunks_wait_for_the_database_at_most_a_minute() -> None:
    clock = ManualClock(1000.0)
    engine = Unavailable(clock)
    find = FinishedItemLookup(engine, clock)
    answers: list[list[set[int]] | None] = []
    for _ in range(100):
        answers.append(find([CHUNK]))
        clock.now_s += 1
    assert answers == [None] * 60 + [[set()]] * 40
    assert engine.queried_s == [*range(0, 60, 5), 60, 90]


def test_earlier_outage_does_not_shorten_the_next() -> None:
    clock = ManualClock(1000.0)
    find = FinishedItemLookup(Unavailable(clock), clock)
    assert find([CHUNK]) is None
    clock.now_s += 59
    assert find([CHUNK]) is None
    clock.now_s += 59
    assert find([CHUNK]) == [set()]
    clock.now_s += 60
    assert find([CHUNK]) is None


async def test_checks_repeat_through_an_outage_and_end_with_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_watch, "CHECK_INTERVAL_S", 0.0)
    outcomes: list[Exception] = [
        sa.exc.OperationalError("SELECT 1", {}, Exception()),
        CommitsLostError(),
    ]
    log = {UUID(int=1): 7}
    seen: list[Mapping[UUID, int]] = []

    def check(numbers: Mapping[UUID, int]) -> None:
        seen.append(dict(numbers))
        log[UUID(int=1)] += 1
        raise outcomes.pop(0)

    with pytest.raises(CommitsLostError):
        await asyncio.wait_for(watch_commits(check, log), 20)
    assert [numbers[UUID(int=1)] for numbers in seen] == [7, 8]
