"""Goal: the end of a batch is known only where its hours and its items allow it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from core.estimates.job_end import PoolEstimate
from core.estimates.pool_shares import TenantWork
from core.estimates.rate_history import PoolRate
from core.estimates.tenant_queue import JobWork, work_ahead
from jobs.estimates.job_eta import PoolSnapshot, eta_of
from jobs.estimates.pool_rates import PoolState
from jobs.estimates.pool_work import JobPosition, TenantJobs, TenantSums

JOB, TENANT = UUID(int=1), UUID(int=2)
NOW_S = 3600.0  # 01:00 UTC
RATE = PoolRate(10.0)
NO_VERSIONS: Mapping[str, frozenset[str]] = {}


def row_of(**columns: Any) -> SimpleNamespace:
    row: dict[str, Any] = {
        "id": JOB, "tenant_id": TENANT, "pool": "pool", "total_count": 9000, "total_final": True,
        "sealed": True, "succeeded": 0, "failed": 0, "cancelled": 0, "expired": 0, "copied": 0,
        "paused_at": None, "quarantined_until": None, "not_before": None, "bulk_hours": None,
        "model": "m", "model_version": "v1", "models": None,
        "tenant_bulk_hours": None, "expires_at": datetime.fromtimestamp(90_000, UTC),
    }  # fmt: skip
    return SimpleNamespace(**row | columns)


def shown(
    row: Any,
    *,
    emitted: int = 100,
    copies: int = 0,
    left: float = 9000.0,
    versions: Mapping[str, frozenset[str]] = NO_VERSIONS,
) -> Any:
    work = JobWork(JOB, 0, 0.0, left, has_started=True)
    jobs = TenantJobs({JOB: work}, work_ahead([work])) if left else TenantJobs()
    estimate = PoolEstimate({TENANT: TenantWork(left)}, RATE)
    pool = PoolSnapshot(PoolState(True, RATE, versions), estimate, {TENANT: TenantSums(left)})
    return eta_of(row, JobPosition(emitted, copies), jobs, pool, NOW_S)


@pytest.mark.parametrize(
    ("hours", "reason"),
    [
        (None, None),
        ("00:00-02:00 UTC", None),  # 9,000 items at 10 in a second: 15 minutes
        ("00:00-01:10 UTC", "off_peak"),
        ("00:00-01:10,01:10-02:00 UTC", None),
        ("02:00-03:00 UTC", "off_peak"),  # not open yet
    ],
)
@pytest.mark.parametrize("column", ["bulk_hours", "tenant_bulk_hours"])
def test_an_end_after_the_hours_of_a_batch_is_not_known(
    column: str, hours: str | None, reason: str | None
) -> None:
    found = shown(row_of(**{column: hours}))
    assert found["reason"] == reason
    assert (found["p50"] is None) is (found["p90"] is None) is (reason is not None)


@pytest.mark.parametrize("start_s", [None, 12.34])
def test_a_batch_of_a_pool_that_starts_has_the_predicted_start(start_s: float | None) -> None:
    pool = PoolSnapshot(PoolState(has_replica=False), None, {TENANT: TenantSums(1.0)}, 1.0, start_s)
    found = eta_of(row_of(), JobPosition(0, 0), TenantJobs(), pool, NOW_S)
    assert found["reason"] == "no_replica"
    assert found["queue_s"] == (None if start_s is None else 12.3)
    assert found["p50"] is None


@pytest.mark.parametrize("hours", ["00:00-01:10 UTC", "02:00-03:00 UTC"])
def test_hours_do_not_hold_a_batch_whose_items_are_all_emitted(hours: str) -> None:
    found = shown(row_of(bulk_hours=hours), emitted=9000)
    assert found["reason"] is None
    assert found["p50"] is not None


@pytest.mark.parametrize(
    ("columns", "copies"),
    [
        ({"succeeded": 9000}, 0),
        ({"succeeded": 8000}, 1000),
        ({"failed": 8500, "copied": 500}, 1000),
    ],
)
@pytest.mark.parametrize("hours", [None, "02:00-03:00 UTC"])
def test_a_batch_without_items_to_run_ends_now(
    columns: dict[str, int], copies: int, hours: str | None
) -> None:
    found = shown(row_of(**columns, bulk_hours=hours), emitted=9000, copies=copies, left=0.0)
    assert found == {
        "p50": 3600, "p90": 3600, "miss_probability": 0.0, "queue_s": 0.0, "reason": None,
    }  # fmt: skip


def test_more_files_may_come_after_all_items_have_ended() -> None:
    found = shown(row_of(succeeded=9000, sealed=False), emitted=9000, left=0.0)
    assert (found["reason"], found["queue_s"], found["p50"]) == ("not_sealed", 0.0, None)


def test_a_batch_that_is_not_in_the_sums_is_too_new() -> None:
    assert shown(row_of(), emitted=0, left=0.0)["reason"] == "too_new"


@pytest.mark.parametrize(
    ("versions", "models", "reason"),
    [
        ({}, None, None),
        ({"other": frozenset()}, None, None),
        ({"pool": frozenset({"v1", "v2"})}, None, None),
        ({"pool": frozenset({"v2"})}, None, "no_version"),
        ({"pool": frozenset({"b", "b+"})}, {"a": {"version": "v1", "base_version": "b"}}, None),
        ({"pool": frozenset({"v1"})}, {"a": {"version": "v1", "base_version": "b"}}, "no_version"),
        (
            {"pool": frozenset({"v1"})},
            {"m": {"version": "v1", "base_version": ""}, "n": {"version": "v2"}},
            "no_version",
        ),
    ],
)
def test_a_batch_whose_version_no_replica_has_has_no_end(
    versions: Mapping[str, frozenset[str]], models: Any, reason: str | None
) -> None:
    assert shown(row_of(models=models), versions=versions)["reason"] == reason
