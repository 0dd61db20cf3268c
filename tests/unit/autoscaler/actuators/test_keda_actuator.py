"""Goal: KEDA and HPAs read exactly the target while it is fresh, and no number otherwise."""

from collections.abc import AsyncIterator
from math import ceil
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.actuators.actuator import KindCount, PoolOrder, StaleEpochError
from autoscaler.actuators.keda import externalscaler_pb2 as wire
from autoscaler.actuators.keda.external_scaler import SERVICE, ExternalScalerServer, ScalerReading
from autoscaler.actuators.keda.keda_actuator import KedaActuator
from autoscaler.actuators.keda.scaling_values import (
    FRESH_S,
    KindSelector,
    ScalingValues,
    value_past_tolerance,
)
from autoscaler.actuators.keda.value_server import ValueServer
from tests.support.clock import ManualClock
from topics.records.scaling import PoolScaling, ReplicaKind

NOW_S = 1_700_000_000.0
KINDS = (
    KindCount(gpu_type="l4", zone="a", replicas=4),
    KindCount(gpu_type="l4", zone="b", spot=True, replicas=2),
    KindCount(gpu_type="h100", zone="a", replicas=1),
)
TYPES = {
    "IsActive": wire.IsActiveResponse,
    "GetMetricSpec": wire.GetMetricSpecResponse,
    "GetMetrics": wire.GetMetricsResponse,
}


class Keda:
    """What KEDA does: calls a server by its generated types."""

    def __init__(self, actuator: KedaActuator, channel: Any) -> None:
        self.actuator = actuator
        self.channel = channel

    async def call(self, method: str, **metadata: str) -> Any:
        request = wire.ScaledObjectRef(name="o", namespace="n", scalerMetadata=metadata)
        if method == "GetMetrics":
            request = wire.GetMetricsRequest(scaledObjectRef=request, metricName="replicas")
        stub = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=TYPES[method].FromString,
        )
        return await stub(request, timeout=20)

    async def value(self, **metadata: str) -> float:
        (found,) = (await self.call("GetMetrics", **metadata)).metricValues
        assert found.metricValueFloat == found.metricValue
        return float(found.metricValueFloat)

    async def code(self, method: str, **metadata: str) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.call(method, **metadata)
        return raised.value.code()

    def stream(self, pool: str) -> Any:
        stub = self.channel.unary_stream(
            f"/{SERVICE}/StreamIsActive",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=wire.IsActiveResponse.FromString,
        )
        return stub(wire.ScaledObjectRef(scalerMetadata={"pool": pool}), timeout=40)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S)


@pytest.fixture
def values(clock: ManualClock) -> ScalingValues:
    return ScalingValues(clock.wall_s)


@pytest.fixture
async def keda(values: ScalingValues, tmp_path: Path) -> AsyncIterator[Keda]:
    reading = ScalerReading("main", values, past_tolerance=True)
    actuator = KedaActuator(
        "main",
        values,
        ExternalScalerServer(reading, "127.0.0.1", 0),
        ValueServer(reading, "127.0.0.1", 0, tmp_path / "token"),
    )
    (tmp_path / "token").write_text("the-token\n")
    await actuator.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{actuator.scaler.port}") as channel:
        yield Keda(actuator, channel)
    await actuator.close()


def order(*kinds: KindCount, epoch: int = 3, sequence: int = 1) -> PoolOrder:
    return PoolOrder(pool="chat", epoch=epoch, sequence=sequence, kinds=kinds)


def record(at_s: float = NOW_S, **fields: Any) -> PoolScaling:
    given: dict[str, Any] = {"epoch": 3, "sequence": 1, "mode": "active", "actuator": "main"}
    given["kinds"] = [ReplicaKind("l4", "", False, 5)]
    rest: dict[str, Any] = {"target": 5, "removals": [], "awake": [], "standby": 0}
    return PoolScaling(pool="chat", at_s=at_s, start_s=1, wake_s=1, **{**rest, **given, **fields})


async def test_the_metric_is_the_target_and_its_own_target_is_1(keda: Keda) -> None:
    await keda.actuator.apply(order(*KINDS))

    (spec,) = (await keda.call("GetMetricSpec", pool="chat")).metricSpecs
    assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
    assert await keda.value(pool="chat") == 7
    assert await keda.value(pool="chat", gpuType="l4", spot="false") == 4
    assert await keda.value(pool="chat", gpuType="l4", spot="true") == 2
    assert await keda.value(pool="chat", zone="a") == 5
    assert (await keda.call("IsActive", pool="chat")).result
    assert not (await keda.call("IsActive", pool="chat", gpuType="b200")).result


async def test_zero_is_told_when_it_was_decided(keda: Keda) -> None:
    await keda.actuator.apply(order(KindCount(gpu_type="l4", replicas=0)))

    assert await keda.value(pool="chat") == 0
    assert not (await keda.call("IsActive", pool="chat")).result


async def test_a_decision_that_is_not_fresh_is_unavailable_and_never_0(
    keda: Keda, clock: ManualClock
) -> None:
    for method in ("IsActive", "GetMetrics"):
        assert await keda.code(method, pool="chat") is grpc.StatusCode.UNAVAILABLE
    await keda.actuator.apply(order(*KINDS))
    clock.advance(FRESH_S - 0.1)
    assert await keda.value(pool="chat") == 7

    clock.advance(0.1)
    for method in ("IsActive", "GetMetrics"):
        assert await keda.code(method, pool="chat") is grpc.StatusCode.UNAVAILABLE
    await keda.actuator.apply(order(*KINDS))
    assert await keda.value(pool="chat") == 7


@pytest.mark.parametrize(
    "fields", [{"mode": "observe"}, {"mode": "paused"}, {"actuator": "another"}]
)
async def test_a_decision_that_is_not_to_be_carried_out_here_is_not_served(
    keda: Keda, values: ScalingValues, fields: dict[str, Any]
) -> None:
    values.restore(record(**fields))

    assert await keda.code("GetMetrics", pool="chat") is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("metadata", [{}, {"pool": ""}, {"pool": "chat", "spot": "yes"}])
async def test_a_trigger_without_valid_metadata_is_refused(
    keda: Keda, metadata: dict[str, str]
) -> None:
    for method in TYPES:
        assert await keda.code(method, **metadata) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_wake_is_pushed_without_a_poll(keda: Keda, clock: ManualClock) -> None:
    await keda.actuator.apply(order(KindCount(replicas=0)))
    stream = keda.stream("chat")
    assert (await stream.read()).result is False
    await keda.actuator.apply(order(KindCount(replicas=2), sequence=2))
    assert (await stream.read()).result is True
    await keda.actuator.apply(order(KindCount(replicas=3), sequence=3))
    await keda.actuator.apply(order(KindCount(replicas=0), sequence=4))
    assert (await stream.read()).result is False  # 2 to 3 was no change of it

    clock.advance(FRESH_S)
    await keda.actuator.apply(
        PoolOrder(pool="other", epoch=3, sequence=1, kinds=())
    )  # any change has all streams look again
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stream.read()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_records_of_the_topic_restore_value_and_epoch(
    keda: Keda, values: ScalingValues
) -> None:
    values.restore(record(epoch=9, sequence=4))
    assert await keda.value(pool="chat") == 5
    older = [ReplicaKind("l4", "", False, 9)]
    values.restore(record(epoch=8, sequence=5, kinds=older))
    values.restore(record(epoch=9, sequence=3, kinds=older))

    with pytest.raises(StaleEpochError):
        await keda.actuator.apply(order(*KINDS, epoch=8))
    assert await keda.value(pool="chat") == 5
    assert (await keda.actuator.observe("chat")).epoch == 9


async def test_a_clock_that_is_ahead_keeps_no_value_fresh(
    keda: Keda, values: ScalingValues, clock: ManualClock
) -> None:
    values.restore(record(at_s=NOW_S + 86_400))
    assert await keda.value(pool="chat") == 5
    clock.advance(FRESH_S)

    assert await keda.code("GetMetrics", pool="chat") is grpc.StatusCode.UNAVAILABLE


async def test_a_small_addition_is_told_past_the_tolerance(
    keda: Keda, values: ScalingValues
) -> None:
    await keda.actuator.apply(order(KindCount(replicas=21)))
    assert await keda.value(pool="chat") == 21  # unknown how many exist

    values.note_existing({"chat": (KindCount(replicas=20),)})
    assert await keda.value(pool="chat") == 23


async def test_the_same_value_is_json_over_http(
    keda: Keda, clock: ManualClock, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{keda.actuator.value_server.port}/scaling/"
    allowed = {"authorization": "Bearer the-token"}
    await keda.actuator.apply(order(*KINDS))
    async with aiohttp.ClientSession() as session:

        async def get(path: str, headers: dict[str, str]) -> tuple[int, Any]:
            async with session.get(url + path, headers=headers) as response:
                return response.status, await response.json()

        assert await get("chat?gpuType=l4&spot=true", allowed) == (
            200,
            {"pool": "chat", "value": 2, "target": 2},
        )
        assert await get("chat", {}) == (401, {"code": "unauthenticated"})
        assert await get("chat", {"authorization": "Bearer x"}) == (
            401,
            {"code": "unauthenticated"},
        )
        assert await get("chat?spot=1", allowed) == (400, {"code": "invalid_spot"})
        assert await get("nowhere", allowed) == (503, {"code": "scaling_unavailable"})
        clock.advance(FRESH_S)
        assert await get("chat", allowed) == (503, {"code": "scaling_unavailable"})
        (tmp_path / "token").unlink()
        assert await get("chat", allowed) == (401, {"code": "unauthenticated"})


async def test_a_port_that_is_taken_opens_nothing(keda: Keda, values: ScalingValues) -> None:
    reading = ScalerReading("main", values, past_tolerance=False)
    second = KedaActuator(
        "main",
        values,
        ExternalScalerServer(reading, "127.0.0.1", 0),
        ValueServer(reading, "127.0.0.1", keda.actuator.value_server.port, None),
    )

    with pytest.raises(OSError, match="in use"):
        await second.start()


def replicas_of_an_hpa(value: int, current: int) -> int:
    """Return what an HPA makes of a metric with AverageValue 1 and its tolerance of 10 %.

    GetExternalPerPodMetricReplicas of Kubernetes' replica calculator.
    """
    if current == 0:  # KEDA scales 0 to 1 by IsActive; then the HPA computes
        current = 1
    ratio = value / current
    return current if abs(1.0 - ratio) <= 0.1 else ceil(value)


@given(target=st.integers(1, 10_000), current=st.integers(0, 10_000))
def test_an_hpa_with_its_tolerance_reaches_at_least_the_target(target: int, current: int) -> None:
    reached = replicas_of_an_hpa(value_past_tolerance(target, current), current)

    if target >= current:
        assert target <= reached <= max(target, current * 11 // 10 + 1)
    else:
        assert target <= reached <= current


@given(current=st.integers(1, 9_000), more=st.integers(1, 1_000))
def test_a_change_beyond_the_tolerance_is_the_target_itself(current: int, more: int) -> None:
    far_above, far_below = current * 11 // 10 + more, max(0, (current * 9 + 9) // 10 - more)

    assert value_past_tolerance(far_above, current) == far_above
    assert value_past_tolerance(far_below, current) == far_below


def test_without_a_selector_all_kinds_count() -> None:
    assert KindSelector().count(KINDS) == 7
