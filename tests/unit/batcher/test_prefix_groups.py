"""Goal: items of a prefix group go to one replica, in their order, and never wait for it."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from batcher.faust_app.ordered_acks import AckTicket
from batcher.inbound.unreadable_records import read_chunk
from batcher.outbound.batch_sender import merge_chunks
from batcher.policy.prefix_affinity import PASSES_MAX
from batcher.queueing.buffered_chunk import GROUP_ITEMS_MIN, BufferedChunk
from batcher.queueing.group_choice import GroupChoice
from batcher.queueing.prefix_groups import PrefixGroups
from batcher.queueing.queues import Queues
from tests.property.test_hash_ring import ring_of
from tests.unit.batcher.builders import job_ref
from tests.unit.batcher.test_dispatcher import Bench
from topics.records.codec import chunk_headers, encode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk, Item, JobRef

JOB = job_ref(1)


def grouped(
    groups: Sequence[int], *, first: int = 0, position: int | None = None, job: JobRef = JOB
) -> BufferedChunk:
    """Return a chunk of items of these groups, from index `first` on."""
    items = [Item(first + n, "c", b"{}", 10, prefix_group=g) for n, g in enumerate(groups)]
    ticket = AckTicket(("requests.bulk", 0), None, len(items), 0.0)
    return BufferedChunk(job, items, ticket, position=position)


def queues_of(*chunks: BufferedChunk) -> Queues:
    queues = Queues(items_max=10**6, bytes_max=10**9)
    for chunk in chunks:
        queues.add(chunk, now_s=0.0)
    return queues


def pop(queues: Queues, count: int, choice: GroupChoice | None = None) -> list[BufferedChunk]:
    (queue,) = queues.pools["p"].batch_keys.values()
    return queues.pop_batch(
        queue, item_count_max=count, token_count_max=10**9, turn_items_max=20, choice=choice
    )


def numbers(chunks: Sequence[BufferedChunk]) -> list[int]:
    return [item.prefix_group for chunk in chunks for item in chunk.items]


def test_chunks_are_popped_by_position_and_splits_keep_it() -> None:
    late, early = grouped([0] * 10, first=0, position=50), grouped([0] * 10, first=90, position=7)
    queues = queues_of(late, early)
    first = pop(queues, 4)
    assert [(one.position, one.items[0].index) for one in first] == [(7, 90)]
    rest = pop(queues, 16)
    assert [(one.position, one.items[0].index) for one in rest] == [(11, 94), (50, 0)]


def test_a_requeued_chunk_keeps_its_position_and_one_in_index_order_needs_none() -> None:
    moved = grouped([0] * 10, first=90, position=7)
    moved.split(3)
    assert moved.to_record().position == 10
    assert grouped([0] * 10, first=90).to_record().position is None
    left = grouped([0] * 10, first=90, position=7).without({90, 91, 95})
    assert left is not None
    assert (left.position, len(left.items)) == (9, 7)
    assert grouped([0] * 3).without({0, 1, 2}) is None


def test_a_position_out_of_range_is_unreadable_and_a_group_of_any_number_is_not() -> None:
    chunk = Chunk(JOB, [Item(0, "c", b"", 1, prefix_group=-(2**62))], position=5)
    record = ReceivedRecord("t", 0, 0, None, chunk_headers(chunk, "bulk"), encode(chunk), 0)
    read = read_chunk(record)
    assert read.position == 5
    assert len(pop(queues_of(BufferedChunk(JOB, read.items, grouped([1]).ticket)), 5)) == 1


def test_parts_of_a_batch_are_in_the_order_of_the_job() -> None:
    chunks = [grouped([2, 2], first=0, position=20), grouped([1, 1], first=8, position=4)]
    (part,) = merge_chunks(chunks, now_s=0.0)
    assert [item.index for item in part.items] == [8, 9, 0, 1]
    assert part.position == 4


def test_a_chunk_of_several_groups_is_split_where_a_run_is_long_enough() -> None:
    runs = grouped([1] * 20 + [2] * 3 + [3] * 30 + [4] * 2, position=100).split_by_group()
    assert [(one.position, len(one.items)) for one in runs] == [(100, 23), (123, 32)]
    tail, rest = grouped([1] * 2 + [2] * 90).split_by_group()
    assert (len(tail.items), rest.prefix_group) == (2, 2)
    short = grouped(range(GROUP_ITEMS_MIN))
    assert [len(one.items) for one in short.split_by_group()] == [GROUP_ITEMS_MIN]


def test_queues_lose_no_item_of_a_split_chunk() -> None:
    queues = queues_of(grouped([1] * 50 + [2] * 50), grouped([2] * 30 + [0] * 30, first=100))
    assert queues.item_count == 160
    pool = queues.pools["p"]
    assert pool.grouped_count == 3  # the last 30 items have no group
    seen = [item.index for _ in range(20) for chunk in _popped(queues) for item in chunk.items]
    assert seen == list(range(160))
    assert pool.grouped_count == 0
    assert queues.item_count == queues.byte_count == 0


def _popped(queues: Queues) -> list[BufferedChunk]:
    return pop(queues, 37) if queues.item_count else []


def test_a_batch_takes_a_run_of_its_group_and_is_closed_before_one_of_another_replica() -> None:
    queues = queues_of(*(grouped([1 + n % 3] * 20, first=20 * n) for n in range(9)))
    (queue,) = queues.pools["p"].batch_keys.values()
    choice = GroupChoice("elsewhere", ring_of([1]))
    choice.begin_run(queues.next_job(queue), 2)
    assert numbers(pop(queues, 100, choice)) == [2] * 60


def test_a_batch_goes_on_with_groups_of_its_replica() -> None:
    queues = queues_of(*(grouped([1 + n % 3] * 20, first=20 * n) for n in range(9)))
    (queue,) = queues.pools["p"].batch_keys.values()
    choice = GroupChoice("r0", ring_of([1]))
    choice.begin_run(queues.next_job(queue), 2)
    assert numbers(pop(queues, 100, choice)) == [2] * 60 + [1] * 40


def test_a_batch_that_is_almost_empty_goes_on_with_the_first_group() -> None:
    queues = queues_of(grouped([1] * 20), grouped([2] * 80, first=20))
    (queue,) = queues.pools["p"].batch_keys.values()
    choice = GroupChoice("elsewhere", ring_of([1]))
    choice.begin_run(queues.next_job(queue), 1)
    assert Counter(numbers(pop(queues, 100, choice))) == {1: 20, 2: 80}


def test_turns_of_tenants_are_as_long_with_groups() -> None:
    other = job_ref(2)
    chunks = [grouped([1 + n % 2] * 40, first=40 * n) for n in range(4)]
    chunks += [grouped([5] * 40, first=40 * n, job=other) for n in range(4)]
    choice = GroupChoice("r0", ring_of([1]))
    batch = pop(queues_of(*chunks), 120, choice)
    assert Counter(one.job.job_id.int for one in batch for _ in one.items) == {1: 60, 2: 60}
    assert set(numbers([one for one in batch if one.job == JOB])) == {1}


def test_groups_that_come_and_go_without_a_search_leave_nothing_behind() -> None:
    """A head without a group is always first: no batch of the job searches for owners."""
    groups, ring = PrefixGroups(JOB.job_id), ring_of([1])
    waiting = [grouped([number]) for number in range(5_000, 5_010)]
    groups.add(waiting[0])
    assert groups.owned_by("r0", ring) == 5_000
    for chunk in waiting[1:]:
        groups.add(chunk)
    for number in range(1, 2_000):
        chunk = grouped([number])
        groups.add(chunk)
        groups.remove(chunk)
    assert len(groups._new) < 100
    for chunk in waiting:
        assert groups.owned_by("r0", ring) == chunk.prefix_group
        groups.remove(chunk)
    assert groups.owned_by("r0", ring) is None


class GroupBench(Bench):
    """A dispatcher with replicas that finish what they get when asked to."""

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self.granted = {f"r{number}": 0 for number in range(replicas)}
        for name in self.granted:
            self.finish(name, 200)

    def finish(self, name: str, count: int) -> None:
        self.granted[name] += count
        self.grant(self.granted[name], replica=name, concurrency=64, rate=300.0)

    def add_groups(self, groups: Sequence[int], size: int) -> None:
        first = 0
        for group in groups:
            for _ in range(size // 100):
                items = [Item(first + n, "c", b"{}", 10, prefix_group=group) for n in range(100)]
                ticket = self.acks.track(
                    ("requests.bulk", 0), first, item_count=100, now_s=self.clock.now_s
                )
                self.queues.add(BufferedChunk(JOB, items, ticket), now_s=self.clock.now_s)
                first += 100

    def by_group(self) -> dict[int, Counter[str]]:
        """Return how many items of each group each replica got."""
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for replica, _, chunks in self.recorder.sent:
            for chunk in chunks:
                for item in chunk.items:
                    found[item.prefix_group][replica] += 1
        return found

    def run(self) -> None:
        """Dispatch; replicas finish their batches one after the other."""
        done = 0
        while self.queues.item_count:
            self.dispatcher.dispatch()
            name, _, chunks = self.recorder.sent[done]
            self.finish(name, sum(len(chunk.items) for chunk in chunks))
            done += 1


def test_a_group_stays_at_its_replica_when_all_are_busy() -> None:
    bench = GroupBench(4)
    bench.add_groups(range(1, 41), 400)
    bench.run()
    sticky = sum(max(found.values()) for found in bench.by_group().values())
    assert sticky >= 0.8 * 40 * 400
    loads = Counter(name for name, _, _ in bench.recorder.sent)
    assert max(loads.values()) <= 1.5 * min(loads.values())


def test_groups_of_a_pool_cost_other_pools_nothing() -> None:
    bench = GroupBench(2)
    bench.grant(200, replica="other", pool="other", concurrency=64)
    bench.queues.add(grouped([3] * 10, job=job_ref(2, pool="other")), now_s=bench.clock.now_s)
    bench.ledger.spend("other", 200, now_s=bench.clock.now_s)  # the groups wait
    bench.add_groups([0], 100)
    bench.dispatcher.dispatch()
    assert set(bench.recorder.replicas()) <= {"r0", "r1"}
    assert bench.recorder.sent
    assert not any(replicas.has_rings for replicas in bench.ledger._by_pool.values())
    bench.add_groups([1], 100)
    bench.dispatcher.dispatch()
    with_rings = {name for name, known in bench.ledger._by_pool.items() if known.has_rings}
    assert with_rings == {"p"}


def test_one_group_alone_uses_every_replica() -> None:
    bench = GroupBench(4)
    bench.add_groups([1], 800)
    bench.dispatcher.dispatch()
    assert Counter(bench.recorder.replicas()) == dict.fromkeys(bench.granted, 2)


def test_small_loads_of_a_group_go_to_one_replica() -> None:
    bench = GroupBench(4)
    for _ in range(10):
        bench.add_groups([7], 100)
        bench.run()
    assert len(bench.by_group()[7]) == 1


def test_the_first_group_is_passed_over_a_bounded_number_of_times() -> None:
    bench = GroupBench(2)
    bench.add_groups([1], 100)
    bench.add_groups(range(2, 60), 100)
    ring = bench.ledger.ring("p")
    job = bench.queues.next_job(next(iter(bench.queues.pools["p"].batch_keys.values())))
    assert job.groups is not None
    owner = ring.owner(job.groups.key(1))
    (other,) = set(bench.granted) - {owner}
    bench.ledger.spend(str(owner), 200, now_s=bench.clock.now_s)  # it has no credit any more
    for _ in range(PASSES_MAX + 2):
        bench.dispatcher.dispatch()
        bench.finish(other, 100)
    assert 1 in bench.by_group()
