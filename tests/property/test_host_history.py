"""Goal: poison never makes a host suspect, and a host that kills never makes an item fail."""

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.quarantine.host_history import (
    PROOF_S_MAX,
    PROOF_S_MIN,
    REST_S_MAX,
    TRUSTED,
    UNEXPLAINED_ENDS_MAX,
    HostVerdict,
    assess_host,
    ran_alone,
)
from gpu_consumers.quarantine.narrowing import initial_units, narrow_units
from topics.records.attempts import AttemptUnit, BatchAttempt, ProcessEnd

CRASHES_MAX = 3
POISON_AT_ONCE_MAX = 3


def end(*, lived_s: float = 2.0, ran_alone: bool = False, serves: bool = False) -> ProcessEnd:
    return ProcessEnd(lived_s, serves, serves, ran_alone)


@given(st.lists(st.integers(0, POISON_AT_ONCE_MAX - 1), max_size=60))
def test_poison_items_do_not_make_their_host_suspect(order: list[int]) -> None:
    """Each number is a crash of one of the items that are there at once, alone in its third."""
    crashes: Counter[int] = Counter()
    ends = []
    for place in order:
        crashes[place] += 1
        ends.append(end(ran_alone=crashes[place] % CRASHES_MAX == 0))
        assert not assess_host(ends).is_failing


@given(st.integers(0, 200), st.floats(0, 20))
def test_a_host_that_ends_whatever_it_runs_rests_for_longer_each_time(
    count: int, lived_s: float
) -> None:
    verdict = assess_host([end(lived_s=lived_s)] * count)
    further = count - UNEXPLAINED_ENDS_MAX

    assert verdict.is_failing == (further > 0)
    assert verdict.rest_s == min(REST_S_MAX, max(0, further))
    assert PROOF_S_MIN <= verdict.proof_s <= PROOF_S_MAX
    assert not count or verdict.proof_s > lived_s or lived_s >= PROOF_S_MAX
    assert not assess_host([*[end()] * count, end(serves=True)]).is_failing


@dataclass
class Hosts:
    """Owners of one batch, one after the other; the host `bad` ends every process."""

    poison: set[int]
    attempt: BatchAttempt
    ends: dict[str, list[ProcessEnd]] = field(default_factory=dict)
    charged: list[int] = field(default_factory=list)
    executions: Counter[int] = field(default_factory=Counter)

    def own(self, host_id: str) -> None:
        """Give the batch to a process on a host, which runs it until it ends."""
        verdict = assess_host(self.ends.setdefault(host_id, []))
        narrowed = narrow_units(
            self.attempt, crashes_max=CRASHES_MAX, host_id=host_id, verdict=verdict
        )
        units = [*narrowed.units]
        if narrowed.charged is not None:
            self.charged.append(narrowed.charged.first)
        is_bad, has_proven, is_running = host_id == "bad", False, True
        while units and is_running:
            needs_proof = units[0].awaits_proof or units[0].forgiven >= CRASHES_MAX
            if needs_proof or (verdict.is_failing and units[0].crashes > 1):
                is_running = not is_bad  # a bad host ends before it has proven itself
                has_proven, verdict = has_proven or not is_bad, TRUSTED if not is_bad else verdict
                if units[0].awaits_proof and not is_bad:
                    self.charged.append(units.pop(0).first)
                    continue
            if is_bad or self._crashes(units[0]):
                break
            units.pop(0)
        self._end(host_id, units, verdict, is_running=is_running, has_proven=has_proven)

    def _crashes(self, unit: AttemptUnit) -> bool:
        return not self.poison.isdisjoint(range(unit.first, unit.first + unit.count))

    def _end(
        self,
        host_id: str,
        units: list[AttemptUnit],
        verdict: HostVerdict,
        *,
        is_running: bool,
        has_proven: bool,
    ) -> None:
        is_running = is_running and bool(units)
        self.attempt = BatchAttempt(
            UUID(int=1),
            self.attempt.life + 1,
            units,
            is_running,
            host_id=host_id,
            host_is_failing=verdict.is_failing,
        )
        if is_running:
            self.executions.update(range(units[0].first, units[0].first + units[0].count))
        if units:
            is_alone = ran_alone(self.attempt)
            self.ends[host_id].append(ProcessEnd(2.0, has_proven, has_proven, is_alone))


@given(
    st.integers(1, 60),
    st.sets(st.integers(0, 59), max_size=3),
    st.lists(st.sampled_from(["good-a", "good-b", "bad"]), max_size=60),
)
def test_a_bad_host_fails_no_item_and_poison_fails_after_a_bounded_number_of_executions(
    item_count: int, poison: set[int], owners: list[str]
) -> None:
    poison = {index for index in poison if index < item_count}
    hosts = Hosts(poison, BatchAttempt(UUID(int=1), 1, initial_units(item_count), False))
    for owner in owners:
        hosts.own(owner)
        assert set(hosts.charged) <= poison
    steps = 0
    while hosts.attempt.units:  # a pool with a working host makes progress
        hosts.own("good-a")
        steps += 1
        assert steps <= 12 * (len(poison) + 1)

    assert sorted(hosts.charged) == sorted(poison)
    assert all(count <= 3 * CRASHES_MAX for count in hosts.executions.values())
