"""Goal: only a pool that its autoscaler will start has a predicted start."""

from typing import Any

import msgspec
import pytest

from api.online.admit.pool_wakes import DECISION_S, FRESH_S, PoolWakes
from tests.support.clock import ManualClock
from tests.support.pool_scaling import pool_scaling, scaling_record
from topics.records.codec import kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.scaling import AutoscalerEpoch, PoolScaling, ScalingOverride

COLD_S = 20.0 + DECISION_S


def wakes_of(*records: Any, clock: ManualClock | None = None) -> PoolWakes:
    wakes = PoolWakes(clock or ManualClock(100.0))
    wakes.apply_records([scaling_record(one) for one in records])
    return wakes


def decision(maximum: int, reason: str) -> bytes:
    bounds = {"min_replicas": 0, "max_replicas": maximum}
    return msgspec.json.encode({"reason": reason, "bounds": bounds, "target": 0})


def test_no_pool_is_woken_without_a_record() -> None:
    wakes = wakes_of()
    assert wakes.predicted_wait_s("p") is None
    before = wakes.has_autoscaler
    wakes.apply_records([scaling_record(AutoscalerEpoch(1, "a", 100.0), "epoch")])
    assert (before, wakes.has_autoscaler) == (False, True)
    assert wakes.predicted_wait_s("p") is None


@pytest.mark.parametrize(
    ("fields", "expected_s"),
    [
        ({}, COLD_S),
        ({"standby": 1, "asleep": 1}, 2.0 + DECISION_S),
        ({"standby": 1}, COLD_S),  # it is wanted, and not loaded
        ({"asleep": 1, "awake": ["r1"]}, 2.0),
        ({"awake": ["r1"]}, 2.0),
        ({"failure": "actuator_denied"}, None),
        ({"failure": "foreign_scaler"}, None),
        ({"failure": "unknown_pool"}, None),
        ({"failure": "actuator_missing"}, None),
        ({"failure": "actuator_timeout"}, COLD_S),  # it is tried again
        ({"start_s": 0.0, "asleep": 1}, None),
        ({"target": 1, "waking_since_s": 95.0}, 15.0),
        ({"target": 1, "waking_since_s": 79.0}, 1.5),  # late by a second
        ({"mode": "observe"}, None),
        ({"mode": "paused"}, None),
        ({"decision": b"not JSON"}, COLD_S),
        ({"decision": decision(0, "max")}, None),
        ({"decision": decision(4, "quota")}, None),
        ({"decision": decision(4, "budget")}, None),
        ({"decision": decision(4, "need")}, COLD_S),
        ({"decision": decision(4, "quota"), "target": 1}, COLD_S),
    ],
)
def test_the_prediction_of_a_record(fields: dict[str, Any], expected_s: float | None) -> None:
    assert wakes_of(pool_scaling(at_s=100.0, **fields)).predicted_wait_s("p") == expected_s


@pytest.mark.parametrize(("age_s", "counts"), [(0.0, True), (14.9, True), (FRESH_S, False)])
@pytest.mark.parametrize("at_receipt", [True, False])
def test_an_old_record_does_not_count(age_s: float, counts: bool, at_receipt: bool) -> None:
    clock = ManualClock(100.0)
    at_s = 100.0 - (age_s if at_receipt else 0.0)
    wakes = wakes_of(pool_scaling(at_s=at_s), clock=clock)
    clock.advance(0.0 if at_receipt else age_s)
    assert (wakes.predicted_wait_s("p") is not None) is counts


def test_a_start_goes_on_between_records_whatever_the_wall_clocks_say() -> None:
    clock = ManualClock(100.0, wall_time_s=50.0)  # the autoscaler's clock is ahead
    wakes = wakes_of(pool_scaling(at_s=100.0, waking_since_s=94.0, target=1), clock=clock)
    assert wakes.predicted_wait_s("p") == 14.0
    clock.advance(4.0)
    assert wakes.predicted_wait_s("p") == 10.0


def test_a_replica_that_was_woken_long_ago_wakes_no_more() -> None:
    """`awake` names it as long as it lives; it may serve no longer."""
    clock = ManualClock(100.0)
    wakes = wakes_of(pool_scaling(at_s=100.0, awake=["r1"]), clock=clock)
    for _ in range(2):
        clock.advance(5.0)
        again = pool_scaling(at_s=clock.wall_s(), awake=["r1"])
        wakes.apply_records([scaling_record(again)])
    assert wakes.predicted_wait_s("p") == COLD_S
    another = pool_scaling(at_s=clock.wall_s(), awake=["r1", "r2"])
    wakes.apply_records([scaling_record(another)])
    assert wakes.predicted_wait_s("p") == 2.0


def test_a_record_of_an_owner_that_was_replaced_is_ignored() -> None:
    wakes = wakes_of(
        pool_scaling(at_s=100.0, epoch=2, start_s=50.0), pool_scaling(at_s=100.0, epoch=1)
    )
    assert wakes.predicted_wait_s("p") == 50.0 + DECISION_S


@pytest.mark.parametrize(
    ("mode", "replicas", "until_s", "is_woken"),
    [
        ("paused", 0, 0.0, False),
        ("set", 0, 0.0, False),
        ("set", 1, 0.0, True),
        ("paused", 0, 99.0, True),  # it has ended
        ("", 0, 0.0, True),
    ],
)
def test_the_order_of_an_operator(mode: str, replicas: int, until_s: float, is_woken: bool) -> None:
    override = ScalingOverride("p", mode, replicas, until_s)
    wakes = wakes_of(pool_scaling(at_s=100.0), override)
    assert (wakes.predicted_wait_s("p") is not None) is is_woken
    wakes.apply_records([scaling_record(None, "override:p")])
    assert wakes.predicted_wait_s("p") is not None


def test_a_deleted_pool_is_not_woken() -> None:
    wakes = wakes_of(pool_scaling(at_s=100.0))
    wakes.apply_records([scaling_record(None)])
    assert wakes.predicted_wait_s("p") is None


@pytest.mark.parametrize("schema", [b"1", b"99"])
def test_a_record_that_cannot_be_read_stops_nothing(schema: bytes) -> None:
    kind = dict(kind_headers(PoolScaling))["kind"]
    junk = ReceivedRecord("scaling", 0, 0, b"p", [("kind", kind), ("schema", schema)], b"junk", 0)
    wakes = PoolWakes(ManualClock(100.0))
    wakes.apply_records([junk, scaling_record(pool_scaling(at_s=100.0))])
    assert wakes.predicted_wait_s("p") == COLD_S


def test_absurd_numbers_give_a_time() -> None:
    nan, infinite = float("nan"), float("inf")
    record = pool_scaling(at_s=nan, start_s=infinite, wake_s=-1.0, waking_since_s=infinite)
    found = wakes_of(record).predicted_wait_s("p")
    assert found is not None
    assert 0.5 <= found <= 86_400
