"""Goal: a Deployment that another scaler changes is not scaled."""

import asyncio
from typing import Any

import pytest

from autoscaler.actuators.actuator import ActuatorDeniedError, ForeignScalerError
from autoscaler.actuators.kubernetes.foreign_scalers import RECHECK_S
from tests.support.actuator_conformance import order
from tests.support.actuator_platforms import KubernetesPlatform
from tests.unit.autoscaler.actuators.kubernetes_pool import ON_DEMAND, SPOT, scales


def scaler(target: str, kind: str | None = "Deployment") -> dict[str, Any]:
    kinds = {} if kind is None else {"kind": kind}
    return {"metadata": {"name": "s"}, "spec": {"scaleTargetRef": {"name": target, **kinds}}}


async def test_a_horizontal_pod_autoscaler_of_a_deployment_is_refused(
    platform: KubernetesPlatform,
) -> None:
    actuator = await platform.open_actuator()
    platform.api.scalers = [scaler("another"), scaler(SPOT)]

    with pytest.raises(ForeignScalerError):
        await actuator.apply(order(platform, 1, 3))
    assert scales(platform) == {ON_DEMAND: 0, SPOT: 0}
    platform.api.scalers = [scaler(SPOT, "StatefulSet")]
    platform.clock.advance(RECHECK_S)
    await actuator.apply(order(platform, 1, 3))
    assert scales(platform) == {ON_DEMAND: 3, SPOT: 0}


async def test_a_scaled_object_needs_no_kind_to_be_refused(platform: KubernetesPlatform) -> None:
    actuator = await platform.open_actuator()
    platform.api.scaled_objects = [scaler(ON_DEMAND, None)]

    with pytest.raises(ForeignScalerError):
        await actuator.apply(order(platform, 1, 3))


async def test_other_scalers_are_listed_once_a_minute(platform: KubernetesPlatform) -> None:
    actuator = await platform.open_actuator()
    listed = ("GET", "horizontalpodautoscalers")
    for sequence in range(5):
        await actuator.apply(order(platform, 1, sequence, sequence=sequence))
        platform.clock.advance(14.9)
    assert platform.api.calls.count(listed) == 1

    platform.api.scalers = [scaler(ON_DEMAND)]
    for _ in range(2):  # the second one is refused by the same list
        with pytest.raises(ForeignScalerError):
            await actuator.apply(order(platform, 1, 9, sequence=9))
    assert platform.api.calls.count(listed) == 2


async def test_orders_at_the_same_time_share_a_list(platform: KubernetesPlatform) -> None:
    actuator = await platform.open_actuator()
    await asyncio.gather(*(actuator._foreign.check({ON_DEMAND}) for _ in range(5)))
    assert platform.api.calls.count(("GET", "horizontalpodautoscalers")) == 1


async def test_a_list_that_failed_is_tried_again_after_ten_seconds(
    platform: KubernetesPlatform,
) -> None:
    actuator, listed = await platform.open_actuator(), ("GET", "horizontalpodautoscalers")
    platform.api.denied = {listed}
    for _ in range(3):
        with pytest.raises(ActuatorDeniedError):
            await actuator.apply(order(platform, 1, 3))
    assert platform.api.calls.count(listed) == 1
    platform.api.denied = set()
    platform.clock.advance(RECHECK_S)
    await actuator.apply(order(platform, 1, 3))
    assert scales(platform) == {ON_DEMAND: 3, SPOT: 0}


@pytest.mark.parametrize(
    ("item", "is_refused"),
    [
        ({}, False),
        (None, False),
        ({"spec": {"scaleTargetRef": None}}, False),
        ({"spec": {"scaleTargetRef": {"kind": "Deployment"}}}, False),
        ({"spec": {"scaleTargetRef": {"name": 3}}}, False),
        ({"spec": {"scaleTargetRef": {"name": ON_DEMAND, "kind": 3}}}, True),
    ],
)
async def test_a_scaler_that_targets_nothing_stops_no_pool(
    platform: KubernetesPlatform, item: Any, is_refused: bool
) -> None:
    actuator = await platform.open_actuator()
    platform.api.scalers = [item]
    if is_refused:
        with pytest.raises(ForeignScalerError):
            await actuator.apply(order(platform, 1, 3))
    else:
        await actuator.apply(order(platform, 1, 3))


async def test_no_right_to_lists_of_keda_stops_no_pool(platform: KubernetesPlatform) -> None:
    """Its HPAs are seen all the same."""
    actuator = await platform.open_actuator()
    platform.api.denied = {("GET", "scaledobjects")}
    await actuator.apply(order(platform, 1, 3))
    assert scales(platform) == {ON_DEMAND: 3, SPOT: 0}
