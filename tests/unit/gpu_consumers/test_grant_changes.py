"""Goal: a busy replica sends grants when batchers need them, and repeats them in time."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from batcher.policy.credits import STALE_S, SUFFICIENT_CREDIT_DIVISOR
from gpu_consumers.flow_control.capacity_publisher import REPEAT_S
from gpu_consumers.flow_control.grant_changes import (
    BUSY_REPEAT_S,
    CHANGE_DIVISOR,
    grants_have_changed,
)
from gpu_consumers.flow_control.grants import bulk_limit
from topics.records.records import ReplicaGrants

LIMIT: Final = 128
GRANTS: Final = ReplicaGrants("r", 7, "p", "bulk", [3], {"a": 100, "b": 20}, 64)
ARRIVED: Final = {"a": 80, "b": 10}


def changed(newest: ReplicaGrants, arrived: dict[str, int] = ARRIVED) -> bool:
    return grants_have_changed(GRANTS, newest, arrived=arrived, limit=LIMIT)


def test_a_small_change_waits_and_a_large_one_does_not() -> None:
    step = LIMIT // CHANGE_DIVISOR
    assert not changed(GRANTS)
    assert not changed(replace(GRANTS, granted={"a": 100 + step - 1, "b": 20 - step + 1}))
    assert changed(replace(GRANTS, granted={"a": 100 + step, "b": 20}))
    assert changed(replace(GRANTS, granted={"a": 100, "b": 20 - step}))


def test_a_batcher_without_credit_and_a_new_one_hear_of_every_place() -> None:
    one_more = replace(GRANTS, granted={"a": 100, "b": 21})
    assert not changed(one_more)
    assert changed(one_more, {"a": 80, "b": 20})
    assert not changed(GRANTS, {"a": 100, "b": 20})  # there is nothing to tell
    assert changed(replace(GRANTS, granted=GRANTS.granted | {"c": 1}))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 8},
        {"partitions": [3, 4]},
        {"concurrency": 63},
        {"available": False},
        {"in_danger": True},
    ],
)
def test_every_change_of_state_is_sent(change: dict[str, object]) -> None:
    assert changed(replace(GRANTS, **change))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=200),
    st.integers(1, 512),
)
def test_no_batcher_is_behind_by_an_eighth_of_the_limit(
    ended: list[tuple[str, int]], limit: int
) -> None:
    sent = GRANTS
    granted = dict(GRANTS.granted)
    for batcher_id, count in ended:
        granted[batcher_id] += count
        newest = replace(GRANTS, granted=dict(granted))
        if grants_have_changed(sent, newest, arrived=sent.granted, limit=limit):
            sent = newest
        behind = {name: granted[name] - sent.granted[name] for name in granted}
        assert max(behind.values()) < max(1, limit // CHANGE_DIVISOR)


@given(st.integers(1, 1024), st.integers(1, 500), st.floats(0.1, 1000))
def test_what_is_not_sent_is_less_than_sufficient_credit(
    concurrency: int, batch_items: int, items_per_s: float
) -> None:
    limit = bulk_limit(concurrency, items_per_s, batch_items)
    unsent = max(1, limit // CHANGE_DIVISOR) - 1
    assert unsent * SUFFICIENT_CREDIT_DIVISOR <= max(concurrency, 0.1 * items_per_s)


def test_one_lost_record_makes_no_replica_late() -> None:
    assert 2 * BUSY_REPEAT_S + REPEAT_S < STALE_S
