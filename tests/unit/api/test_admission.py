"""Goal: a call is refused if and only if it could not be served in time or a limit is reached."""

import pytest

from api.online.admit.admission import (
    OpenCallCounts,
    find_refusal,
    predicted_wait_s,
)
from api.online.call_errors import retry_after_seconds
from api.online.settings import OnlineSettings
from jobs.expansion.windows import PoolCapacity

LIMITS = OnlineSettings(open_calls_max=10, open_calls_per_tenant_max=5)
POOL = PoolCapacity(items_per_s=2.0, concurrency=4)


@pytest.mark.parametrize(
    ("load", "status", "code"),
    [
        (OpenCallCounts(total=9, of_tenant=4, of_pool=0), None, None),
        (OpenCallCounts(total=9, of_tenant=5, of_pool=0), 429, "queue_full"),
        (OpenCallCounts(total=10, of_tenant=0, of_pool=0), 503, "queue_full"),
    ],
)
def test_limits_on_open_calls(load: OpenCallCounts, status: int | None, code: str | None) -> None:
    refused = find_refusal(load, LIMITS, POOL, execution_s=1.0, time_left_s=60)

    assert (refused.status if refused else None) == status
    assert (refused.code if refused else None) == code


@pytest.mark.parametrize(
    ("open_calls", "pool", "execution_s", "wait_s"),
    [
        (4, POOL, 4.0, 0.0),  # runs at once
        (6, POOL, 4.0, 1.0),
        (6, POOL, 1.0, 0.5),  # the measured rate is that of little work
        (1000, None, 1.0, 0.0),  # nothing is known
        (1000, POOL, 0.0, 0.0),
        (1000, PoolCapacity(0.0, 0), 1.0, 0.0),
    ],
)
def test_predicted_wait(
    open_calls: int, pool: PoolCapacity | None, execution_s: float, wait_s: float
) -> None:
    assert predicted_wait_s(open_calls, pool, execution_s) == wait_s


def test_a_wait_beyond_the_deadline_is_refused_with_retry_after() -> None:
    load = OpenCallCounts(total=0, of_tenant=0, of_pool=104)
    refused = find_refusal(load, LIMITS, POOL, execution_s=2.0, time_left_s=40)

    assert refused is not None
    assert (refused.status, refused.code) == (503, "queue_full")
    assert refused.headers == {"retry-after": "10"}
    assert find_refusal(load, LIMITS, POOL, execution_s=2.0, time_left_s=50) is None


@pytest.mark.parametrize(("seconds", "header"), [(0.0, 1), (1.2, 2), (1e9, 60)])
def test_retry_after_is_within_limits(seconds: float, header: int) -> None:
    assert retry_after_seconds(seconds) == header
