"""Goal: while the database is away chunks wait for it, a minute of its absence and no longer."""

from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from batcher.faust_app.ordered_acks import AckTicket
from batcher.inbound.redelivered_items import FinishedItemLookup
from batcher.queueing.buffered_chunk import BufferedChunk
from topics.records.records import Item, JobRef

JOB = JobRef(UUID(int=1), 1, UUID(int=1), "m", "1", "p", "/v1/embeddings", "k", 1e9)
HELD = BufferedChunk(JOB, [Item(0, "a", b"{}", 1)], AckTicket(("requests.bulk", 0), None, 1, 0.0))


class HeldClock:
    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


class Away(sa.Engine):
    """A database that nobody reaches."""

    def __init__(self, clock: HeldClock) -> None:
        self._clock = clock
        self.asked_s: list[float] = []

    def connect(self) -> sa.Connection:
        self.asked_s.append(self._clock.now_s - 1000)
        raise OperationalError("", None, Exception())


def test_chunks_wait_for_a_minute_and_the_database_is_asked_now_and_then() -> None:
    clock = HeldClock()
    engine = Away(clock)
    finished = FinishedItemLookup(engine, clock)
    answers: list[list[set[int]] | None] = []
    for _ in range(100):
        answers.append(finished([HELD]))
        clock.now_s += 1
    assert answers == [None] * 60 + [[set()]] * 40
    assert engine.asked_s == [*range(0, 60, 5), 60, 90]


def test_an_outage_long_ago_does_not_shorten_the_next() -> None:
    clock = HeldClock()
    finished = FinishedItemLookup(Away(clock), clock)
    assert finished([HELD]) is None
    clock.now_s += 59
    assert finished([HELD]) is None
    clock.now_s += 59
    assert finished([HELD]) == [set()]
    clock.now_s += 60
    assert finished([HELD]) is None
