"""Goal: the drill of scaling sees each broken promise, and its relay keeps and passes orders."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoscaler.actuators.actuator import ActuatorError, KindCount, PoolOrder
from autoscaler.actuators.embedded import EmbeddedActuator
from autoscaler.policies.policy_reader import read_policies
from chaos.drills import scaling
from chaos.drills.scaling_measures import OwnerEnd, Recovery, measure_orders, measure_recoveries
from chaos.installations.scaling_relay import ACCEPTED, RelayedOrder, RelayFault, ScalingRelay
from chaos.measures import Measure
from chaos.observations.scaled_pool import PoolSample
from tests.support.scaling_sockets import RecordedPools, carried_out, scaling_socket


def order(epoch: int, replicas: int = 1, sequence: int = 1) -> PoolOrder:
    kinds = (KindCount(replicas=replicas),)
    return PoolOrder(pool="pool", epoch=epoch, sequence=sequence, kinds=kinds)


def relayed(epoch: int, replicas: int = 1, sequence: int = 1, outcome: str = "") -> RelayedOrder:
    sent = order(epoch, replicas, sequence)
    return RelayedOrder(order=sent, at_s=0.0, outcome=outcome or ACCEPTED)


def sample(ordered: int, existing: int, epoch: int = 1) -> PoolSample:
    names = frozenset(f"r{number}" for number in range(existing))
    return PoolSample(at_s=0.0, ordered=ordered, existing=names, epoch=epoch)


def broken(measures: list[Measure]) -> set[str]:
    return {one.what for one in measures if one.is_violation}


def test_a_sound_round_breaks_nothing() -> None:
    orders = [relayed(1), relayed(1, 2, sequence=2), relayed(2, 6)]
    samples = [sample(1, 1), sample(2, 2), sample(6, 6, epoch=2)]
    assert broken(measure_orders(orders, samples, 6)) == set()
    assert broken(measure_recoveries([Recovery("kill", 3.0)], [OwnerEnd(0.0, 9.0)])) == set()


@pytest.mark.parametrize(
    ("orders", "samples", "what"),
    [
        ([relayed(2), relayed(1)], [], "orders carried out after one of a higher epoch"),
        (
            [relayed(1, sequence=2), relayed(1, sequence=1)],
            [],
            "orders carried out after one of a higher epoch",
        ),
        ([], [sample(1, 1, epoch=2), sample(1, 1)], "epochs of the host that went back"),
        ([relayed(1, 7)], [], "numbers of replicas out of bounds"),
        ([], [sample(6, 7)], "numbers of replicas out of bounds"),
    ],
)
def test_each_broken_promise_is_seen(
    orders: list[RelayedOrder], samples: list[PoolSample], what: str
) -> None:
    assert broken(measure_orders(orders, samples, 6)) == {what}


def test_a_refused_order_of_an_old_epoch_is_no_violation() -> None:
    orders = [relayed(2), relayed(1, outcome="stale_epoch")]
    assert broken(measure_orders(orders, [], 6)) == set()


def test_late_recoveries_and_takeovers_are_seen() -> None:
    measures = measure_recoveries([Recovery("kill", 31.0)], [OwnerEnd(0.0, 10.5)])
    assert len(broken(measures)) == 2


def test_plans_have_what_a_round_needs() -> None:
    quick = {tuple(scaling.planned_faults(seed, long=False)) for seed in range(40)}
    assert len(quick) > 10
    for plan in quick:
        assert {scaling.HELD, scaling.KILLED, scaling.BROKER} < set(plan)
        assert set(plan) & set(scaling.SOCKET_FAULTS)
    long = scaling.planned_faults(7, long=True)
    assert long == scaling.planned_faults(7, long=True)
    assert all(long.count(fault) == 3 for fault in scaling.FAULTS)


def test_the_policies_of_the_drill_are_valid() -> None:
    policy = read_policies(scaling.POLICIES.encode(), "scaling.toml").policy_of(scaling.POOL)
    assert (policy.replicas_min, policy.replicas_max) == (0, scaling.REPLICAS_MAX)


@pytest.fixture
def pools() -> RecordedPools:
    return RecordedPools()


@pytest.fixture
def relay(tmp_path: Path, pools: RecordedPools) -> Iterator[ScalingRelay]:
    path = tmp_path / "scaling.sock"
    with (
        scaling_socket(path, pools) as served,
        carried_out(served.answer_waiting),
        ScalingRelay(path, random.Random(1)) as relay,
    ):
        yield relay


async def test_an_order_passes_and_is_recorded(
    relay: ScalingRelay, pools: RecordedPools, tmp_path: Path
) -> None:
    await EmbeddedActuator(str(tmp_path / "scaling.sock")).apply(order(3, 2))
    assert pools.orders == relay.accepted() == [order(3, 2)]
    assert relay.observe("pool").epoch == 3


async def test_a_refusal_is_recorded_by_its_code(
    relay: ScalingRelay, pools: RecordedPools, tmp_path: Path
) -> None:
    actuator = EmbeddedActuator(str(tmp_path / "scaling.sock"))
    await actuator.apply(order(3))
    with pytest.raises(ActuatorError):
        await actuator.apply(order(2))
    assert [one.outcome for one in relay.orders] == [ACCEPTED, "stale_epoch"]
    assert pools.orders == [order(3)]


@pytest.mark.parametrize(
    ("fault", "is_carried_out"),
    [("closed", False), ("hang", False), ("garbage", False), ("lost-answer", True)],
)
async def test_a_fault_fails_the_order(
    relay: ScalingRelay,
    pools: RecordedPools,
    tmp_path: Path,
    fault: RelayFault,
    is_carried_out: bool,
) -> None:
    relay.fault = fault
    actuator = EmbeddedActuator(str(tmp_path / "scaling.sock"), timeout_s=0.5)
    with pytest.raises(ActuatorError):
        await actuator.apply(order(1))
    assert bool(pools.orders) is bool(relay.accepted()) is is_carried_out
    assert (relay.held() == order(1)) is (fault == "hang")
    relay.fault = ""
    actuator = EmbeddedActuator(str(tmp_path / "scaling.sock"))
    await actuator.apply(order(1, 2, sequence=2))
    assert pools.orders[-1] == order(1, 2, sequence=2)


async def test_the_socket_is_put_back(tmp_path: Path, pools: RecordedPools) -> None:
    path = tmp_path / "scaling.sock"
    with scaling_socket(path, pools) as served, carried_out(served.answer_waiting):
        with ScalingRelay(path, random.Random(1)):
            pass
        await EmbeddedActuator(str(path)).apply(order(1))
    assert pools.orders == [order(1)]
