"""Goal: attempts follow the published schedule and back off when a receiver fails."""

import math
from pathlib import Path

import pytest

from results.webhooks.delivery.retry_schedule import (
    DELAYS_S,
    DeliveryFailure,
    next_delay_s,
    queue_backoff_s,
)

HOUR_S = 3600
PLAIN = DeliveryFailure(500)


def test_published_schedule() -> None:
    hours = [2, 5, 10, 14, 20, 24]
    assert (0, 5, 300, 1800, *(h * HOUR_S for h in hours)) == DELAYS_S
    assert [next_delay_s(n, PLAIN, 0.0) for n in range(1, 11)] == [*DELAYS_S[1:], None]


def test_documented_duration_matches_the_schedule() -> None:
    page = (Path(__file__).parents[4] / "docs/webhooks.md").read_text().replace("\n", " ")
    total_s = sum(DELAYS_S)
    later_min = math.ceil(total_s * 0.1 / 60)

    assert f"at least {total_s // 3600:.0f} h {total_s % 3600 // 60:.0f} min after" in page
    assert f"at most {later_min // 60} h {later_min % 60} min later" in page
    assert f"within {total_s // 3600:.0f} hours" in page


@pytest.mark.parametrize(("fraction", "moved_s"), [(0.0, 0), (0.5, 15), (0.999, 29.97)])
def test_jitter_adds_up_to_a_tenth(fraction: float, moved_s: float) -> None:
    assert next_delay_s(2, PLAIN, fraction) == pytest.approx(300 + moved_s)


def test_retry_after_delays_the_next_attempt() -> None:
    assert next_delay_s(1, DeliveryFailure(429, 120.0), 0.5) == 120
    assert next_delay_s(5, DeliveryFailure(429, 120.0), 0.0) == 5 * HOUR_S


@pytest.mark.parametrize("status", [429, 502, 504])
def test_throttling_receiver_blocks_its_queue(status: int) -> None:
    assert queue_backoff_s(1, 5, DeliveryFailure(status), 0.0) == 10
    assert queue_backoff_s(1, 5, DeliveryFailure(status, 60.0), 0.5) == 60


def test_breaker_opens_after_consecutive_failures_and_doubles() -> None:
    rests = [queue_backoff_s(n, 5, PLAIN, 0.0) for n in range(1, 20)]
    assert rests[:8] == [0, 0, 0, 0, 5, 10, 20, 40]
    assert rests[-1] == 300
    assert queue_backoff_s(10_000, 5, PLAIN, 0.0) == 300


def test_only_410_is_gone() -> None:
    assert DeliveryFailure(410).is_permanent
    assert not any(DeliveryFailure(status).is_permanent for status in (404, 301, 500, None))
