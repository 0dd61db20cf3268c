"""Goal: a seed repeats its plan, and every fault of a plan is healed within it."""

import pytest

from chaos.nemeses.conductor import FAULTS, kinds
from chaos.planning import Fault, plan

KINDS = kinds(("a", "b"), 2.0)


def draw(seed: int) -> list[Fault]:
    return plan(seed, KINDS, duration_s=120, gap_s=(1, 10))


def test_a_seed_repeats_its_plan() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


@pytest.mark.parametrize("seed", range(50))
def test_faults_are_in_order_and_healed_in_time(seed: int) -> None:
    faults = draw(seed)
    assert faults == sorted(faults, key=lambda fault: fault.at_s)
    assert all(0 < fault.at_s <= fault.ends_s < 120 for fault in faults)


@pytest.mark.parametrize("seed", range(50))
def test_no_two_faults_of_a_kind_meet_on_a_target(seed: int) -> None:
    ends: dict[tuple[str, str], float] = {}
    for fault in draw(seed):
        assert ends.get((fault.kind, fault.target), -1.0) < fault.at_s
        ends[fault.kind, fault.target] = fault.ends_s


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.times_max < 10])
def test_rare_kinds_stay_rare(kind: object) -> None:
    counts = [sum(fault.kind == kind.name for fault in draw(seed)) for seed in range(50)]  # type: ignore[attr-defined]
    assert max(counts) <= kind.times_max  # type: ignore[attr-defined]


def test_every_kind_can_be_applied() -> None:
    assert {kind.name for kind in KINDS} == set(FAULTS)
