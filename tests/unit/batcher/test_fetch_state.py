"""Goal: a partition that the batcher cannot read is found, and backpressure is none."""

from types import SimpleNamespace
from typing import Any

import pytest

from batcher.faust_app.fetch_state import LATE_MS, unreadable_partitions

NOW_MS = 1e12


def client(
    *,
    leader: int | None = 1,
    answered_ms: float | None = NOW_MS,
    in_flight: bool = True,
    buffered: bool = False,
) -> Any:
    """Return a client with one partition."""
    fetcher = SimpleNamespace(
        _records={"p": "records"} if buffered else {}, _in_flight={1} if in_flight else set()
    )
    assignment = SimpleNamespace(
        tps=["p"], state_value=lambda _: SimpleNamespace(timestamp=answered_ms)
    )
    cluster = SimpleNamespace(leader_for_partition=lambda _: leader)
    return SimpleNamespace(
        _fetcher=fetcher,
        _subscription=SimpleNamespace(subscription=SimpleNamespace(assignment=assignment)),
        _client=SimpleNamespace(cluster=cluster),
    )


@pytest.mark.parametrize(
    "state",
    [
        {"leader": None},
        {"leader": -1},
        {"answered_ms": NOW_MS - LATE_MS - 1},
        {"answered_ms": None},
    ],
)
def test_a_partition_is_unreadable_without_leader_or_answer(state: dict[str, Any]) -> None:
    assert unreadable_partitions(client(**state), now_ms=NOW_MS) == ["p"]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"answered_ms": 0.0, "in_flight": False},  # paused: nothing is fetched
        {"answered_ms": 0.0, "buffered": True},
    ],
)
def test_a_partition_that_is_not_fetched_is_readable(state: dict[str, Any]) -> None:
    assert unreadable_partitions(client(**state), now_ms=NOW_MS) == []


def test_a_client_without_assignment_has_none() -> None:
    starting = client()
    starting._fetcher = None
    assert unreadable_partitions(starting, now_ms=NOW_MS) == []
    unassigned = client()
    unassigned._subscription.subscription = None
    assert unreadable_partitions(unassigned, now_ms=NOW_MS) == []
