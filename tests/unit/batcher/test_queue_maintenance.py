"""Goal: what waits for a dead pool leaves room for the others, and is not rewritten for nothing."""

from dataclasses import dataclass, field
from uuid import UUID

import pytest

from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.policy.credits import CreditLedger
from batcher.policy.requeue_policy import PIN_GAIN, POOL_SEARCH_S
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.maintenance import REQUEUES_MAX, QueueMaintenance
from batcher.queueing.queues import Queues
from core.clock import SystemClock
from tests.unit.batcher.no_controls import NoControls
from topics.records.records import Capacity, Item, JobRef

LIMIT_S = 30.0
CHUNKS = 200
SHARED = ("requests.bulk", 0)


@dataclass
class HeldClock:
    now_s: float = 10_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


@dataclass
class Recorder:
    is_full: bool = False
    handed_back: list[BufferedChunk] = field(default_factory=list)

    def requeue(self, held: BufferedChunk) -> None:
        self.handed_back.append(held)


class World:
    """A sweeper over queues that 200 chunks of ten items fill."""

    def __init__(self) -> None:
        self.clock, self.recorder = HeldClock(), Recorder()
        self.number = 0
        self.queues = Queues(items_max=10 * CHUNKS, bytes_max=10**9)
        self.ledger = CreditLedger("b", "bulk", silence_s_max=3.0)
        self.acks = OrderedAcks(lambda _: None)
        over = DropPolicy(NoControls(), DatabaseClock(SystemClock(), None))
        self.sweeper = QueueMaintenance(
            queues=self.queues,
            ledger=self.ledger,
            acks=self.acks,
            sender=self.recorder,  # type: ignore[arg-type]
            obsolete_items=ObsoleteItems(self.acks, over),
            clock=self.clock,
            job_class="bulk",
            hold_limit_s=LIMIT_S,
        )

    def come(self, pool: str, *, count: int = 1) -> list[BufferedChunk]:
        """Take over so many chunks, each from a partition of its own: none pins another."""
        job = JobRef(UUID(int=1), 1, UUID(int=7), "m", "1", pool, "/v1/embeddings", "k", 1e9)
        came = []
        for number in range(count):
            items = [Item(10 * number + n, "c", b"{}", 10) for n in range(10)]
            ticket = self.acks.track(
                ("requests.bulk", number), None, item_count=10, now_s=self.clock.now_s
            )
            came.append(BufferedChunk(job, items, ticket))
            self.queues.add(came[-1], now_s=self.clock.now_s)
        return came

    def come_together(self, pool: str, *, byte_count: int) -> BufferedChunk:
        """Take over a chunk of this size from the partition that it shares with all such."""
        self.number += 1
        owner = UUID(int=self.number)
        job = JobRef(owner, 1, owner, "m", "1", pool, "/v1/embeddings", "k", 1e9)
        ticket = self.acks.track(
            SHARED, None, item_count=1, now_s=self.clock.now_s, byte_count=byte_count
        )
        held = BufferedChunk(job, [Item(0, "c", b"{}", 10)], ticket)
        self.queues.add(held, now_s=self.clock.now_s)
        return held

    def finish(self, held: BufferedChunk) -> None:
        """A chunk leaves, and what it carried is durable elsewhere."""
        self.queues.remove(held)
        self.acks.settle(held.ticket, len(held.items))

    def grant(self, pool: str) -> None:
        granted = {"b": 1000}
        capacity = Capacity(f"of {pool}", 1, pool, "bulk", [0], granted, 0.0, 8)
        self.ledger.record_capacity(capacity, now_s=self.clock.now_s)

    def served(self, pool: str) -> None:
        """Something of a pool comes and leaves."""
        for held in self.come(pool):
            self.queues.remove(held)

    def sweep(self) -> int:
        """Sweep once and return how many chunks were handed back."""
        self.recorder.handed_back.clear()
        self.sweeper.requeue_old()
        return len(self.recorder.handed_back)


@pytest.fixture
def world() -> World:
    return World()


def test_a_dead_pool_makes_room_for_one_that_has_credit(world: World) -> None:
    world.served("fed")
    world.come("dead", count=CHUNKS)
    world.clock.now_s += LIMIT_S + 10
    world.grant("fed")
    assert world.sweep() == REQUEUES_MAX
    assert {held.job.pool for held in world.recorder.handed_back} == {"dead"}
    assert world.sweep() == 0  # there is room: nothing more goes before it is read into
    world.come("dead", count=REQUEUES_MAX)
    assert world.sweep() == REQUEUES_MAX


def test_beside_an_idle_pool_with_credit_one_chunk_a_sweep_goes(world: World) -> None:
    world.served("idle")
    world.come("dead", count=CHUNKS)
    world.clock.now_s += POOL_SEARCH_S + 1
    world.grant("idle")
    for _ in range(3):
        assert world.sweep() == 1
        world.come("dead")
    world.queues.remove(next(world.queues.snapshot()))
    world.come("idle")
    assert world.sweep() == REQUEUES_MAX


def test_a_pool_of_which_nothing_ever_came_is_looked_for_all_the_same(world: World) -> None:
    world.come("dead", count=CHUNKS)
    world.clock.now_s += LIMIT_S + 10
    world.grant("new")
    assert world.sweep() == 1


@pytest.mark.parametrize("granted", [None, "dead"])
def test_without_another_pool_that_has_credit_nothing_goes(
    world: World, granted: str | None
) -> None:
    world.served("other")
    world.come("dead", count=CHUNKS)
    world.clock.now_s += LIMIT_S + 10
    if granted is not None:
        world.grant(granted)
    assert world.sweep() == 0


@pytest.mark.parametrize("granted", [None, "dead"])
def test_what_pins_goes_once_that_saves_more_than_it_costs(
    world: World, granted: str | None
) -> None:
    world.come_together("dead", byte_count=1000)
    world.clock.now_s += LIMIT_S + 10
    for _ in range(3):
        world.finish(world.come_together("fed", byte_count=1000))
        if granted is not None:
            world.grant(granted)
        assert world.sweep() == 0
    world.finish(world.come_together("fed", byte_count=1000))
    assert world.sweep() == 1
    assert world.recorder.handed_back[0].job.pool == "dead"


def test_a_dead_pool_beside_one_that_trickles_is_hardly_ever_rewritten(world: World) -> None:
    """40 chunks of 200 kB wait on a partition that gets one of another pool every 10 s."""
    size = 200_000
    for _ in range(40):
        world.come_together("dead", byte_count=size)
    brought = rewritten = most_behind = 0
    for second in range(7200):
        world.clock.now_s += 1
        if second % 10 == 0:
            world.finish(world.come_together("fed", byte_count=size))
            brought += size
        world.sweep()
        for held in list(world.recorder.handed_back):
            world.acks.settle(held.ticket, len(held.items))
            world.come_together("dead", byte_count=size)
            rewritten += size
        most_behind = max(most_behind, world.acks.open_count - 40)
    assert 0 < rewritten <= brought / PIN_GAIN["bulk"]
    # What a crash would read again is bounded by what waits, however long it does.
    assert most_behind <= 40 * PIN_GAIN["bulk"]


def test_a_pool_that_is_empty_and_of_which_no_replica_is_known_is_forgotten(world: World) -> None:
    world.grant("known")
    for pool in ("known", "gone"):
        world.served(pool)
    world.come("waiting")
    world.sweeper.forget_pools()
    assert world.queues.waiting() == {"known": 0, "waiting": 10}
    world.come("gone")
    assert world.queues.waiting()["gone"] == 10
