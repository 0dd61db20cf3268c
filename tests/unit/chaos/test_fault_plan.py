"""Goal: a seed repeats its plan, and every fault of a plan is healed within it."""

import pytest

from chaos.faults.injector import FAULTS, fault_kinds
from chaos.faults.plan import Fault, plan_faults

KINDS = fault_kinds(("a", "b"), 2.0)


def draw(seed: int) -> list[Fault]:
    return plan_faults(seed, KINDS, duration_s=120, gap_s=(1, 10))


def test_a_seed_repeats_its_plan() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


@pytest.mark.parametrize("seed", range(50))
def test_faults_are_in_order_healed_in_time_and_alone_on_a_resource(seed: int) -> None:
    faults = draw(seed)
    assert faults == sorted(faults, key=lambda fault: fault.at_s)
    ends: dict[str, float] = {}
    for fault in faults:
        assert 0 < fault.at_s <= fault.ends_s < 120
        assert all(ends.get(resource, -1.0) < fault.at_s for resource in fault.resources)
        ends |= dict.fromkeys(fault.resources, fault.ends_s)


def test_faults_occupy_routes_processes_and_services() -> None:
    resources = {kind.name: kind.resources for kind in KINDS}
    route = set(resources["network"]("kafka-a:latency"))
    assert route == set(resources["network"]("kafka-a:blackhole")) == {"kafka-a"}
    assert set(resources["rewind"]("requests")) == {"a/batcher", "b/batcher"}
    assert set(resources["pause"]("b/batcher")) <= set(resources["rewind"]("requests"))
    assert set(resources["postgres-restart"]("postgres")) == set(
        resources["postgres-pause"]("postgres")
    )


@pytest.mark.parametrize("seed", range(200))
def test_a_quick_storm_has_a_fault_of_every_kind(seed: int) -> None:
    faults = plan_faults(seed, KINDS, duration_s=60, gap_s=(1, 4))
    assert {fault.kind for fault in faults} == {kind.name for kind in KINDS}
    assert len(faults) > len(KINDS)


def test_rare_kinds_stay_rare() -> None:
    plans = [draw(seed) for seed in range(50)]
    for kind in KINDS:
        assert (
            max(sum(fault.kind == kind.name for fault in plan) for plan in plans) <= kind.times_max
        )


def test_every_kind_can_be_applied() -> None:
    assert {kind.name for kind in KINDS} == set(FAULTS)
