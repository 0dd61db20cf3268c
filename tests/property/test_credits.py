"""Goal: credit is never overspent, whatever is lost, repeated, reordered or restarted."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.policy.credits import CreditLedger, ReplicaCredit
from batcher.policy.replica_index import RECHECK_S, Rank
from tests.unit.batcher.builders import capacity
from topics.records.records import Capacity, ReplicaGrants


@dataclass
class Step:
    action: str
    replica: int
    epoch: int
    amount: int
    passes_s: float


def ledger(*capacities: Capacity) -> CreditLedger:
    """Return the credit of batcher `b` after these records, all received at 0 s."""
    book = CreditLedger("b", "bulk", silence_s_max=3.0)
    for one in capacities:
        book.record_capacity(one, now_s=0.0)
    return book


def best(book: CreditLedger, now_s: float) -> ReplicaCredit:
    found = book.best("p", now_s=now_s)
    assert found is not None
    return found


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["grant", "spend", "spend", "away"]),
        st.integers(0, 2),
        st.integers(1, 3),
        st.integers(1, 200),
        st.floats(0, 2),
    ),
    max_size=200,
)


@given(steps)
def test_no_epoch_gets_more_than_its_largest_grant(steps: list[Step]) -> None:
    book, now_s = ledger(), 0.0
    newest: dict[int, int] = {}
    granted: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int], int] = {}
    for step in steps:
        now_s += step.passes_s
        name = f"r{step.replica}"
        if step.action in ("grant", "away"):
            book.record_capacity(
                capacity(
                    step.amount, replica_id=name, epoch=step.epoch, available=step.action == "grant"
                ),
                now_s=now_s,
            )
            if step.epoch >= newest.get(step.replica, 0):
                newest[step.replica] = step.epoch
                key = (step.replica, step.epoch)
                granted[key] = max(granted.get(key, 0), step.amount)
        else:
            count = min(step.amount, book.available(name, now_s=now_s))
            if count:
                book.spend(name, count, now_s=now_s)
                key = (step.replica, newest[step.replica])
                sent[key] = sent.get(key, 0) + count
    for key, count in sent.items():
        assert count <= granted[key]


def test_grants_are_void_during_silence() -> None:
    book = ledger(capacity(10))
    book.spend("r", 4, now_s=1.0)
    assert book.available("r", now_s=3.0) == 6
    assert book.available("r", now_s=3.1) == 0
    assert book.best("p", now_s=3.1) is None
    book.record_capacity(capacity(10), now_s=5.0)
    assert book.available("r", now_s=5.0) == 6


def test_grants_are_void_while_unavailable_and_on_a_new_epoch() -> None:
    book = ledger(capacity(10, epoch=5))
    book.spend("r", 4, now_s=0.0)
    book.record_capacity(capacity(10, epoch=5, available=False), now_s=0.1)
    assert book.available("r", now_s=0.1) == 0
    book.record_capacity(capacity(7, epoch=6), now_s=0.2)
    assert book.available("r", now_s=0.2) == 7
    book.record_capacity(capacity(100, epoch=5), now_s=0.3)
    assert book.available("r", now_s=0.3) == 7


def test_replica_with_most_free_credit_is_chosen() -> None:
    book = ledger(
        capacity(10, replica_id="small"),
        capacity(20, replica_id="large"),
        capacity(99, replica_id="other pool", pool="q"),
        capacity(99, replica_id="other class", job_class="interactive"),
        capacity(99, replica_id="without partitions", partitions=[]),
    )
    assert best(book, 0.0).capacity.replica_id == "large"
    assert book.pools == {"p", "q"}


OTHERS = {"in danger", "late"}


def test_suspect_and_late_replicas_come_last() -> None:
    book = ledger()
    book.record_capacity(capacity(50, replica_id="in danger", in_danger=True), now_s=1.0)
    book.record_capacity(capacity(50, replica_id="late"), now_s=0.0)
    book.record_capacity(capacity(4, replica_id="calm"), now_s=1.0)

    # It is preferred though it is not idle, until no batch may close for the item that is left.
    for spent, expected in ((0, {"calm"}), (2, {"calm"}), (1, OTHERS), (1, OTHERS)):
        if spent:
            book.spend("calm", spent, now_s=1.6)
        assert best(book, 1.6).capacity.replica_id in expected


def test_replica_that_changes_its_pool_leaves_the_first() -> None:
    book = ledger(capacity(10))
    book.record_capacity(capacity(10, pool="q", epoch=2), now_s=0.0)
    assert book.pools == {"q"}
    assert book.best("p", now_s=0.0) is None


def test_credit_is_free_since_it_was_granted() -> None:
    book = ledger()
    book.record_capacity(capacity(10), now_s=1.0)
    book.record_capacity(capacity(20), now_s=1.2)
    assert best(book, 1.2).free_since_s == 1.0
    book.spend("r", 5, now_s=1.3)
    assert best(book, 1.3).free_since_s == 1.0
    book.spend("r", 15, now_s=1.5)
    book.record_capacity(capacity(30), now_s=1.7)
    assert best(book, 1.7).free_since_s == 1.7
    assert best(book, 1.7).idle


def test_silent_replicas_are_no_candidates_and_keep_their_count() -> None:
    known = ledger(*(capacity(10, replica_id=f"gone-{number}") for number in range(100)))
    known.spend("gone-7", 4, now_s=0.0)
    known.record_capacity(capacity(10, replica_id="here"), now_s=4.0)
    known.forget_silent_replicas(now_s=4.0)
    assert known.candidates("p") == {"here"}
    assert known.pools == {"p"}
    known.record_capacity(capacity(10, replica_id="gone-7"), now_s=5.0)
    assert known.candidates("p") == {"here", "gone-7"}
    assert known.available("gone-7", now_s=5.0) == 6
    known.forget_silent_replicas(now_s=26 * 3600.0)
    assert known.pools == frozenset()


def grants(granted: int, *, epoch: int = 1, **fields: Any) -> ReplicaGrants:
    """Return a record that grants batcher `b` so many items."""
    defaults: dict[str, Any] = {
        "replica_id": "r",
        "pool": "p",
        "job_class": "bulk",
        "partitions": [0, 1],
        "concurrency": 8,
    }
    return ReplicaGrants(epoch=epoch, granted={"b": granted}, **(defaults | fields))


def test_grants_count_more_than_the_capacity_of_the_same_epoch() -> None:
    book = ledger(capacity(10))
    assert book.available("r", now_s=0.0) == 10
    book.record_grants(grants(20, partitions=[5]), now_s=1.0)
    book.spend("r", 4, now_s=1.0)
    book.record_capacity(capacity(10, items_per_s=7.0, available=False), now_s=1.1)
    assert book.available("r", now_s=1.1) == 16
    known = best(book, 1.1).capacity
    assert (known.items_per_s, known.partitions, known.available) == (7.0, [5], True)


def test_grants_of_a_new_replica_are_enough_to_send() -> None:
    book = ledger()
    book.record_grants(grants(6, in_danger=True), now_s=1.0)
    assert book.pools == {"p"}
    known = best(book, 1.0)
    assert (known.free, known.capacity.concurrency, known.capacity.in_danger) == (6, 8, True)
    book.record_grants(grants(9, job_class="interactive"), now_s=1.0)
    assert book.available("r", now_s=1.0) == 6


@pytest.mark.parametrize("is_capacity_first", [True, False])
def test_a_new_epoch_voids_grants_from_whichever_topic_it_comes(is_capacity_first: bool) -> None:
    book = ledger()
    book.record_grants(grants(20), now_s=0.0)
    book.spend("r", 5, now_s=0.0)
    news = [
        lambda: book.record_capacity(capacity(0, epoch=2, items_per_s=3.0), now_s=0.1),
        lambda: book.record_grants(grants(8, epoch=2), now_s=0.1),
    ]
    news[not is_capacity_first]()
    assert book.available("r", now_s=0.1) == (0 if is_capacity_first else 8)
    news[is_capacity_first]()
    assert book.available("r", now_s=0.1) == 8
    book.record_grants(grants(99, epoch=1), now_s=0.2)
    assert book.available("r", now_s=0.2) == 8
    assert best(book, 0.2).capacity.items_per_s == 3.0


def test_capacity_counts_again_while_grants_are_silent() -> None:
    book = ledger()
    book.record_grants(grants(20), now_s=0.0)
    for now_s in (1.0, 2.0, 3.0):
        book.record_capacity(capacity(25), now_s=now_s)
        assert book.available("r", now_s=now_s) == 20
    book.record_capacity(capacity(30), now_s=4.0)
    assert book.available("r", now_s=4.0) == 30
    book.record_grants(grants(31), now_s=5.0)
    book.record_capacity(capacity(30), now_s=5.1)
    assert book.available("r", now_s=5.1) == 31


changes = st.lists(
    st.tuples(
        st.sampled_from(["grant", "repeat", "spend", "unreachable", "reachable", "danger"]),
        st.integers(0, 9),
        st.integers(1, 40),
        st.floats(0, 1),
    ),
    max_size=150,
)


@given(changes)
def test_the_index_finds_a_best_replica_as_a_search_of_all_does(
    changes: list[tuple[str, int, int, float]],
) -> None:
    unreachable: set[str] = set()
    book = CreditLedger(
        "b",
        "bulk",
        silence_s_max=3.0,
        is_reachable=lambda one: one.replica_id not in unreachable,
    )
    now_s, total = 0.0, 0
    newest: dict[str, ReplicaGrants] = {}
    for action, number, amount, passes_s in changes:
        name = f"r{number}"
        now_s += 2 * RECHECK_S + passes_s  # sums of floats may be less than their parts
        if action in ("grant", "danger"):
            total += amount
            newest[name] = grants(total, replica_id=name, in_danger=action == "danger")
            book.record_grants(newest[name], now_s=now_s)
        elif action == "repeat" and name in newest:
            book.record_grants(newest[name], now_s=now_s)
        elif action == "spend" and (free := book.available(name, now_s=now_s)):
            book.spend(name, min(free, amount), now_s=now_s)
        elif action == "unreachable":
            unreachable.add(name)
        elif action == "reachable":
            unreachable.discard(name)
        ranks = [
            book._replicas[replica].rank(now_s)
            for replica in book.candidates("p")
            if replica not in unreachable and book.available(replica, now_s=now_s)
        ]
        found = book.best("p", now_s=now_s)
        assert (None if found is None else found.rank(now_s)) == min(ranks, default=None)


def test_replicas_in_equal_state_take_turns() -> None:
    book = ledger(*(capacity(100, replica_id=f"r{number}") for number in range(3)))
    chosen = []
    for _ in range(6):
        replica = best(book, 0.0).capacity.replica_id
        book.spend(replica, 1, now_s=0.0)
        chosen.append(replica)
    assert chosen[:3] == chosen[3:]
    assert {*chosen} == {"r0", "r1", "r2"}


def test_a_search_among_a_thousand_replicas_ranks_few() -> None:
    book = ledger(*(capacity(100, replica_id=f"r{number}") for number in range(1000)))
    best(book, 0.0)
    ranked: list[str] = []
    rank = book._by_pool["p"]._rank

    def rank_and_count(replica_id: str, now_s: float) -> Rank | None:
        ranked.append(replica_id)
        return rank(replica_id, now_s)

    book._by_pool["p"]._rank = rank_and_count
    for _ in range(100):
        book.spend(best(book, 0.0).capacity.replica_id, 1, now_s=0.0)
    assert len(ranked) <= 300


@pytest.mark.parametrize("silence_s_max", [0.5, 1.0, 3.0])
def test_a_replica_with_constant_grants_is_chosen_again_after_a_silence(
    silence_s_max: float,
) -> None:
    known = CreditLedger("b", "bulk", silence_s_max=silence_s_max)
    for now_s in (0.0, 0.1):
        known.record_grants(grants(8), now_s=now_s)
    for silent_s in (0.0, 0.2, 1.2, 4.0):
        now_s += silent_s
        known.best("p", now_s=now_s)  # may find that it is silent
        known.record_grants(grants(8), now_s=now_s)
        assert best(known, now_s).capacity.replica_id == "r"


@pytest.mark.parametrize("window", [1, 7, 8, 500])
def test_a_credit_that_was_withdrawn_is_no_load_for_long(window: int) -> None:
    """Another batcher may have it for good; grants that stay equal change no load."""
    known = ledger(*(capacity(window, replica_id=name) for name in "ab"))
    ring = known.ring("p")
    known.record_grants(grants(0, replica_id="a"), now_s=0.0)
    known.record_grants(grants(window, replica_id="b"), now_s=0.0)
    assert not ring.has_space("a")
    for second in range(1, 61):
        known.record_grants(grants(0, replica_id="a"), now_s=second)
        known.record_grants(grants(window, replica_id="b"), now_s=second)
        known.forget_silent_replicas(now_s=second)
    assert known.replica("a").load == 0
    assert ring.has_space("a")
    known.forget_silent_replicas(now_s=100.0)
    assert known.candidates("p") == frozenset()
    assert ring.primary(0) is None
