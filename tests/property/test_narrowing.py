"""Goal: of a batch that ends its process, exactly the poison is charged, alone, after few ends.

An item that crashed alone is charged when its host serves other work afterwards.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_consumers.quarantine.host_history import UNEXPLAINED_ENDS_MAX, HostVerdict
from gpu_consumers.quarantine.narrowing import (
    SPLIT_COUNT,
    crashed_elsewhere,
    initial_units,
    narrow_units,
    split_unit,
)
from topics.records.attempts import AttemptUnit, BatchAttempt

CRASHES_MAX = 3


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, set[int]]:
    """Return how many items a batch has, and which of them end their process."""
    count = draw(st.integers(1, 100))
    return count, draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=12))


def lives(count: int, poison: set[int]) -> tuple[list[int], list[int], int]:
    """Run a batch until it is done; return who succeeded, who was charged, and the deaths."""
    succeeded: list[int] = []
    charged: list[int] = []
    deaths, units = 1, initial_units(count)  # its first execution was in company
    while units:
        unit, *rest = units
        if unit.awaits_proof:
            assert unit.count == 1
            charged.append(unit.first)
            units = rest
            continue
        its = range(unit.first, unit.first + unit.count)
        if poison.isdisjoint(its):
            succeeded += its
            units = rest
            continue
        deaths += 1
        after = narrow_units(
            BatchAttempt(UUID(int=1), deaths, units, True), crashes_max=CRASHES_MAX
        )
        units = after.units
        assert units == sorted(units, key=lambda unit: unit.crashes)
        assert after.charged is None  # all crashes are on one host
    return succeeded, charged, deaths


@given(batches())
def test_the_poison_alone_is_charged_within_three_deaths_each(batch: tuple[int, set[int]]) -> None:
    count, poison = batch
    succeeded, charged, deaths = lives(count, poison)

    assert sorted(charged) == sorted(poison)
    assert sorted(succeeded) == sorted(set(range(count)) - poison)
    assert deaths <= CRASHES_MAX * len(poison)


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(0, 5))
def test_a_split_covers_its_unit_in_order(first: int, count: int, crashes: int) -> None:
    units = split_unit(AttemptUnit(first, count, crashes))

    assert [p for u in units for p in range(u.first, u.first + u.count)] == [
        *range(first, first + count)
    ]
    assert len(units) <= SPLIT_COUNT
    assert {unit.crashes for unit in units} == {crashes}
    assert count == 1 or max(unit.count for unit in units) < count


def test_what_lay_beside_a_unit_that_ended_its_process_goes_first() -> None:
    ran, *rest = initial_units(30)
    after = narrow_units(BatchAttempt(UUID(int=1), 1, [ran, *rest], True), crashes_max=CRASHES_MAX)
    assert after.units[: len(rest)] == rest
    alone = AttemptUnit(0, 1, 1)
    after = narrow_units(
        BatchAttempt(UUID(int=1), 1, [alone, *rest], True), crashes_max=CRASHES_MAX
    )
    assert after.units == [*rest, AttemptUnit(0, 1, 2)]


def test_who_let_go_in_good_order_charges_nobody() -> None:
    units = initial_units(59)
    for kept, is_running in ((units, False), ([], False), ([], True)):
        after = narrow_units(BatchAttempt(UUID(int=1), 1, kept, is_running), crashes_max=1)
        assert (after.units, after.charged) == (kept, None)


@dataclass
class Pool:
    """Owners of one batch on healthy hosts, one after the other, each until its process ends."""

    poison: set[int]
    attempt: BatchAttempt
    starts: Counter[int]
    charged: list[int] = field(default_factory=list)

    def own(self, host_id: str, *, other_host_serves: bool) -> None:
        narrowed = narrow_units(
            self.attempt, crashes_max=CRASHES_MAX, host_id=host_id, repeats_here=False
        )
        units = [*narrowed.units]
        if narrowed.charged is not None:
            self.charged.append(narrowed.charged.first)
        while units:
            unit = units[0]
            if unit.awaits_proof:
                waits_in_vain = crashed_elsewhere(unit, CRASHES_MAX, host_id)
                if waits_in_vain and not other_host_serves:
                    units[0] = replace(unit, awaits_proof=False)
                else:
                    self.charged.append(units.pop(0).first)
                continue
            its = range(unit.first, unit.first + unit.count)
            self.starts.update(self.poison.intersection(its))
            if not self.poison.isdisjoint(its):
                break
            units.pop(0)
        self.attempt = BatchAttempt(
            UUID(int=1), self.attempt.life + 1, units, bool(units), host_id=host_id
        )


OWNERS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.booleans()), max_size=60)


@given(batches(), OWNERS)
def test_a_poison_item_costs_three_starts_or_four_if_its_first_host_does_not_serve(
    batch: tuple[int, set[int]], owners: list[tuple[str, bool]]
) -> None:
    """Wherever its batch moves, and whichever of the hosts come back."""
    count, poison = batch
    pool = Pool(poison, BatchAttempt(UUID(int=1), 1, initial_units(count), False), Counter(poison))
    for host_id, other_host_serves in owners:
        pool.own(host_id, other_host_serves=other_host_serves)
    while pool.attempt.units:
        pool.own("a", other_host_serves=True)
    assert sorted(pool.charged) == sorted(poison)
    always_serves = all(serves for _, serves in owners)
    assert max(pool.starts.values()) <= (CRASHES_MAX if always_serves else CRASHES_MAX + 1)


def test_every_schedule_of_an_item_on_two_hosts_has_four_starts_at_most() -> None:
    worst = 0
    steps = list(product("ab", (False, True)))
    for owners in product(steps, repeat=4):
        pool = Pool({0}, BatchAttempt(UUID(int=1), 1, initial_units(1), False), Counter({0: 1}))
        for host_id, other_host_serves in owners:
            pool.own(host_id, other_host_serves=other_host_serves)
        assert pool.charged == [0], owners
        worst = max(worst, pool.starts[0])
    assert worst == CRASHES_MAX + 1


TENTH, ALONE = UUID(int=11), UUID(int=12)


def crashed_tenth(**fields: object) -> BatchAttempt:
    """Return an attempt whose first unit is an item that was in the crash of a tenth."""
    units = [AttemptUnit(0, 1, 2, process_ends=[TENTH])]
    given_fields = {"process_id": ALONE, "host_id": "a", **fields}
    return BatchAttempt(UUID(int=1), 2, units, True, **given_fields)  # type: ignore[arg-type]


def test_an_item_that_crashes_alone_explains_the_ends_since_its_tenth() -> None:
    tenth = BatchAttempt(UUID(int=1), 1, [AttemptUnit(0, 10, 1)], True, process_id=TENTH)
    after = narrow_units(tenth, crashes_max=CRASHES_MAX)
    assert after.crashed_alone is None
    assert {tuple(unit.process_ends) for unit in after.units} == {(TENTH,)}

    after = narrow_units(crashed_tenth(), crashes_max=CRASHES_MAX, host_id="b")
    assert after.crashed_alone is not None
    assert after.crashed_alone.process_ends == [TENTH, ALONE]


def test_a_crash_alongside_others_or_on_a_failing_host_explains_nothing() -> None:
    together = narrow_units(crashed_tenth(in_company=True), crashes_max=CRASHES_MAX)
    assert together.crashed_alone is None
    assert together.units[0].process_ends == [TENTH]  # any of those that ran may have crashed it

    failing = narrow_units(crashed_tenth(host_is_failing=True), crashes_max=CRASHES_MAX)
    assert failing.crashed_alone is None

    verdict = HostVerdict(UNEXPLAINED_ENDS_MAX + 1)
    own = narrow_units(crashed_tenth(), crashes_max=CRASHES_MAX, host_id="a", verdict=verdict)
    assert own.crashed_alone is None
    assert own.units[0].process_ends == []
