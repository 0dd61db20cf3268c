"""Goal: a failed task is reported with its name, and shutdown waits for all parts at once."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.auth.key_cache import KeyCache, refresh_keys
from api.online.admit.model_cache import ModelCache
from api.online.online_runtime import OnlineRuntime
from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import SystemClock
from core.errors import MillraceError
from core.ids import new_uuid
from core.runtime.supervised_tasks import TaskDiedError, supervise
from tenancy.api_keys import Principal, working_keys


class Broken:
    """A database that fails in one way after another."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    async def run_across_tenants(self, _work: object, *_: object) -> None:
        raise self.failures.pop(0)


async def told_of(task: asyncio.Task[None]) -> list[MillraceError]:
    failures: list[MillraceError] = []
    supervise(task, failures.append)
    async with asyncio.timeout(20):
        await asyncio.wait([task])
    await asyncio.sleep(0)
    return failures


async def test_a_failed_key_refresh_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    keys: KeyCache[Principal] = KeyCache(ttl_s=60, clock=SystemClock())
    database = cast(Database, Broken(RuntimeError("secret")))
    keys.remember("a", Principal(new_uuid(), new_uuid()), keys.now_s())
    assert keys.find("a")
    (failure,) = await told_of(
        asyncio.create_task(refresh_keys(keys, database, 0.001, working_keys))
    )

    assert isinstance(failure, TaskDiedError)
    assert str(failure) == "The task refresh_keys died: RuntimeError."
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]


async def test_a_failed_model_refresh_is_reported() -> None:
    database = Broken(DatabaseUnavailableError(), RuntimeError("secret"))
    routes = ModelCache(cast(Database, database), SystemClock())
    (failure,) = await told_of(asyncio.create_task(routes.refresh_periodically(0.001)))

    assert str(failure) == "The task ModelCache.refresh_periodically died: RuntimeError."


async def test_a_millrace_error_is_reported_unchanged() -> None:
    unavailable = DatabaseUnavailableError()

    async def fail() -> None:
        raise unavailable

    assert await told_of(asyncio.create_task(fail())) == [unavailable]


async def test_completion_and_cancellation_are_not_reported() -> None:
    sleeping = asyncio.create_task(asyncio.sleep(30))
    sleeping.cancel()

    assert await told_of(sleeping) == []
    assert await told_of(asyncio.create_task(asyncio.sleep(0))) == []


class Part:
    """A tail or the producer, which notes what it is asked for."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    def request_stop(self) -> None:
        self._steps.append("told")

    def stop(self) -> None:
        self._steps.append("waited for")

    def close(self, _timeout_s: float) -> None:
        self._steps.append("flushed")


def test_all_tail_threads_are_asked_to_stop_before_the_first_join() -> None:
    steps: list[str] = []
    online: Any = OnlineRuntime.__new__(OnlineRuntime)
    online._producer = part = Part(steps)
    online._tails, online._service_tail, online._scaling = (part, part), part, part
    online._close()
    assert steps == [*["told"] * 4, "flushed", *["waited for"] * 4]


@pytest.mark.parametrize("is_away", [False, True])
async def test_keys_are_destroyed_while_hits_are_billed(*, is_away: bool) -> None:
    destroyed = asyncio.Event()

    async def bill(_: object) -> None:
        if is_away:
            raise DatabaseUnavailableError
        await destroyed.wait()

    async def stop() -> None:
        destroyed.set()

    online: Any = OnlineRuntime.__new__(OnlineRuntime)
    online.cache = SimpleNamespace(bill=bill)
    online.call_keys = SimpleNamespace(stop=stop)
    online.services = SimpleNamespace(database=None)
    async with asyncio.timeout(1):  # a bill that came first would take 3 s
        await online._clean_up()
    assert destroyed.is_set()
