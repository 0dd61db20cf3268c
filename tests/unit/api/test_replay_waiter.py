"""Goal: a retry waits for its row for a limited time, and waiting retries are limited."""

import asyncio
from typing import cast

import pytest

from api.idempotency import replay_waiter
from api.idempotency.replay_waiter import Refusal, ReplayWaiter
from api.runtime.database import Database
from api.views.progress_poller import ProgressSnapshot
from core.clock import SystemClock
from core.ids import new_uuid
from jobs.errors import IdempotencyKeyInFlightError, IdempotencyKeyReusedError

JOB = new_uuid()


class Rows:
    """A database in which a job ends when a test says so."""

    def __init__(self) -> None:
        self.ended = False
        self.looks = 0
        self.looked_twice = asyncio.Event()

    async def run_across_tenants(
        self, _work: object, job_ids: list[object]
    ) -> dict[object, ProgressSnapshot]:
        self.looks += 1
        if self.looks >= 2:
            self.looked_twice.set()
        return dict.fromkeys(job_ids, ProgressSnapshot(int(self.ended), self.ended))


class Look:
    """Finds the key in use `times` times, then free."""

    def __init__(self, rows: Rows, failure: Refusal, times: int) -> None:
        self.rows, self.failure, self.is_disconnected = rows, failure, times

    async def __call__(self) -> str:
        if self.is_disconnected:
            self.is_disconnected -= 1
            raise self.failure
        return "free"


def waits(rows: Rows, wait_s_max: float = 30.0) -> ReplayWaiter:
    return ReplayWaiter(cast(Database, rows), SystemClock(), wait_s_max=wait_s_max)


async def test_a_free_key_does_not_wait() -> None:
    rows = Rows()
    assert (
        await waits(rows).retry_until_free(Look(rows, IdempotencyKeyInFlightError(), 0)) == "free"
    )
    assert rows.looks == 0


@pytest.mark.parametrize(
    "refusal", [IdempotencyKeyInFlightError(JOB), IdempotencyKeyReusedError(JOB)]
)
@pytest.mark.parametrize("method", ["retry_until_free", "retry_until_settled"])
async def test_a_retry_continues_when_its_row_exists(refusal: Refusal, method: str) -> None:
    rows = Rows()
    look = Look(rows, refusal, 1)
    repeat = asyncio.create_task(getattr(waits(rows), method)(look))
    await asyncio.wait_for(rows.looked_twice.wait(), 20)
    assert not repeat.done()
    rows.ended = True
    assert await asyncio.wait_for(repeat, 20) == "free"


async def test_a_locked_key_is_retried() -> None:
    rows = Rows()
    assert (
        await waits(rows).retry_until_free(Look(rows, IdempotencyKeyInFlightError(), 2)) == "free"
    )


async def test_a_running_call_stays_in_flight() -> None:
    rows = Rows()
    with pytest.raises(IdempotencyKeyInFlightError):
        await waits(rows, 0.1).retry_until_free(Look(rows, IdempotencyKeyInFlightError(JOB), 1000))
    with pytest.raises(IdempotencyKeyInFlightError):
        await waits(rows, 0).retry_until_free(Look(rows, IdempotencyKeyInFlightError(JOB), 1))


async def test_waiting_retries_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_waiter, "WAITING_MAX", 1)
    rows = Rows()
    all_of_them = waits(rows)
    first = asyncio.create_task(
        all_of_them.retry_until_free(Look(rows, IdempotencyKeyInFlightError(JOB), 1))
    )
    await asyncio.wait_for(rows.looked_twice.wait(), 20)
    with pytest.raises(IdempotencyKeyInFlightError):
        await all_of_them.retry_until_free(Look(rows, IdempotencyKeyInFlightError(JOB), 1))
    rows.ended = True
    assert await asyncio.wait_for(first, 20) == "free"


async def test_another_refusal_is_raised_at_once() -> None:
    rows = Rows()
    with pytest.raises(IdempotencyKeyReusedError):
        await waits(rows).retry_until_free(Look(rows, IdempotencyKeyReusedError(), 1))
    with pytest.raises(IdempotencyKeyInFlightError):
        await waits(rows).retry_until_settled(Look(rows, IdempotencyKeyInFlightError(), 1))
