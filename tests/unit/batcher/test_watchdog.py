"""Goal: a stalled process is detected, and an idle one is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batcher.watchdog import Observation, Watchdog

SEEN = Observation(
    at_s=0.0,
    lag=10,
    received_count=5,
    dispatched_count=5,
    acknowledged_count=5,
    committed_offsets=5,
    buffered_count=0,
    has_credit=True,
    open_count=0,
    is_full=False,
    rebalance_count=1,
)


def is_stalled_after(seconds: int, **fields: object) -> bool:
    """Whether a process with `fields` for so long is reported as stalled."""
    watchdog = Watchdog(60.0)
    seen = replace(SEEN, **fields)  # type: ignore[arg-type]
    return any(watchdog.is_stalled(replace(seen, at_s=float(s))) for s in range(0, seconds + 1, 5))


def test_lag_without_records_is_a_stall_after_the_limit() -> None:
    assert not is_stalled_after(60)
    assert is_stalled_after(75)


@pytest.mark.parametrize(
    ("fields", "stalls"),
    [
        ({"buffered_count": 3}, True),
        ({"buffered_count": 3, "has_credit": False, "open_count": 10}, False),  # all is read
        ({"buffered_count": 3, "has_credit": False, "open_count": 9}, True),  # one is not
        ({"buffered_count": 3, "has_credit": False, "open_count": 9, "is_full": True}, False),
        ({"lag": 0}, False),
    ],
)
def test_a_stall_is_work_that_is_possible_and_not_done(
    fields: dict[str, object], stalls: bool
) -> None:
    assert is_stalled_after(600, **fields) is stalls


@pytest.mark.parametrize(
    "counts_at",
    [
        lambda second: {"received_count": 5 + second // 50},
        lambda second: {
            "received_count": second,
            "acknowledged_count": second,
            "committed_offsets": second,
        },
    ],
)
def test_progress_restarts_the_measure(counts_at: Callable[[int], dict[str, Any]]) -> None:
    watchdog = Watchdog(60.0)
    for second in range(0, 600, 5):
        seen = replace(SEEN, at_s=float(second), **counts_at(second))
        assert not watchdog.is_stalled(seen)
        assert watchdog.commit_age_s(seen) == 0.0


def test_acknowledged_records_that_are_never_committed_are_a_stall() -> None:
    watchdog = Watchdog(60.0)
    names = ("received_count", "dispatched_count", "acknowledged_count")
    stalled = []
    for second in range(0, 100, 5):
        counts: dict[str, Any] = dict.fromkeys(names, second)
        stalled.append(watchdog.is_stalled(replace(SEEN, at_s=float(second), **counts)))
    assert stalled[-1]
    assert not any(stalled[:12])


def test_unknown_lag_hides_no_commit_stall() -> None:
    watchdog = Watchdog(60.0)
    assert not watchdog.is_stalled(SEEN)
    late = replace(SEEN, at_s=61.0, acknowledged_count=6)
    assert not watchdog.is_stalled(replace(late, at_s=30.0, lag=None))
    assert watchdog.is_stalled(late)


def test_acknowledged_records_of_a_revoked_partition_are_no_stall() -> None:
    """They were acknowledged here, but their offsets are committed elsewhere, and nothing lags."""
    watchdog = Watchdog(60.0)
    assert not watchdog.is_stalled(SEEN)
    for second in range(5, 600, 5):
        assert not watchdog.is_stalled(
            replace(SEEN, at_s=float(second), acknowledged_count=6, lag=0)
        )


def test_rebalance_restarts_the_commit_age() -> None:
    """With every pool unavailable, buffered records lag and nothing more is committed."""
    watchdog = Watchdog(60.0)
    held = replace(SEEN, buffered_count=3, has_credit=False, open_count=10)
    assert not watchdog.is_stalled(held)
    after = replace(held, acknowledged_count=6, rebalance_count=2)
    assert not any(watchdog.is_stalled(replace(after, at_s=float(s))) for s in range(5, 600, 5))
