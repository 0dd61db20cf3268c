"""Goal: slow work delays only its owner, and the few queries that see all tenants are listed."""

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

import api
from api.http.health import DatabaseProbe
from api.runtime.database import Database, FairThreadPool, Owner
from tests.support.clock import ManualClock

ME, OTHER, THIRD = UUID(int=1), UUID(int=2), UUID(int=3)
WAIT_S = 20


class Slow:
    """Work that goes on until a test lets it end."""

    def __init__(self, count: int) -> None:
        self.threads = FairThreadPool(count, "test")
        self.may_end = threading.Event()
        self.takes_s = 0.0  # from then on
        self.began: list[Owner] = []
        self._begins = threading.Semaphore(0)

    def submit(self, owner: Owner, count: int) -> list[Future[bool]]:
        def work() -> bool:
            self.began.append(owner)
            self._begins.release()
            may_end = self.may_end.wait(WAIT_S)
            time.sleep(self.takes_s)
            return may_end

        return [self.threads.submit(owner, work) for _ in range(count)]

    def until_began(self, count: int) -> None:
        for _ in range(count):
            assert self._begins.acquire(timeout=WAIT_S)


@pytest.fixture
def slow() -> Iterator[Slow]:
    opened = Slow(8)
    yield opened
    opened.may_end.set()
    opened.threads.close()


def quick(slow: Slow, owner: Owner) -> str:
    return slow.threads.submit(owner, lambda: "done").result(WAIT_S)


def test_an_owner_may_use_half_of_the_threads(slow: Slow) -> None:
    mine = slow.submit(ME, 20)
    slow.until_began(4)

    assert quick(slow, OTHER) == "done"
    assert quick(slow, "authenticate") == "done"
    assert slow.began == [ME] * 4
    slow.may_end.set()
    assert [one.result(WAIT_S) for one in mine] == [True] * 20


def test_tenants_leave_a_quarter_to_internal_work(slow: Slow) -> None:
    for tenant_id in (ME, OTHER, THIRD):
        slow.submit(tenant_id, 4)
    slow.until_began(6)

    assert quick(slow, "authenticate") == "done"
    assert len(slow.began) == 6


def test_one_kind_of_internal_work_leaves_half_of_the_threads(slow: Slow) -> None:
    slow.submit("authenticate", 20)
    slow.until_began(4)

    assert [quick(slow, owner) for owner in (ME, "working_keys")] == ["done", "done"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_threads_serve_owners_round_robin(count: int) -> None:
    slow = Slow(count)
    slow.submit(ME, 1)
    slow.until_began(1)
    ended: list[Owner] = []
    owners: list[Owner] = [ME, ME, ME, OTHER, "authenticate"]
    waiting = [slow.threads.submit(owner, lambda o=owner: ended.append(o)) for owner in owners]  # type: ignore[misc]
    slow.may_end.set()
    for one in waiting:
        one.result(WAIT_S)
    slow.threads.close()

    assert sorted(map(str, ended)) == sorted(map(str, owners))
    assert ended.index(OTHER) < 3


def test_cancelled_work_never_runs_and_costs_no_round(slow: Slow) -> None:
    mine = slow.submit(ME, 6)
    slow.until_began(4)
    assert [one.cancel() for one in mine] == [False] * 4 + [True] * 2
    slow.may_end.set()

    assert quick(slow, ME) == "done"
    assert len(slow.began) == 4


def test_an_exception_reaches_the_future_and_keeps_the_thread(slow: Slow) -> None:
    def fail() -> None:
        raise LookupError

    for _ in range(10):
        with pytest.raises(LookupError):
            slow.threads.submit(ME, fail).result(WAIT_S)
    assert quick(slow, ME) == "done"


def test_close_cancels_queued_work_only(slow: Slow) -> None:
    mine = slow.submit(ME, 5)
    slow.until_began(4)
    slow.threads.close()
    slow.may_end.set()

    assert [one.result(WAIT_S) for one in mine[:4]] == [True] * 4
    with pytest.raises(CancelledError):
        mine[4].result(WAIT_S)


def test_abandoned_work_costs_its_owner_no_round(slow: Slow) -> None:
    mine, others = slow.submit(ME, 54), slow.submit(OTHER, 54)
    slow.until_began(6)  # of both together; two threads are left to what is ours
    for one in (*mine[4:], *others[4:]):
        one.cancel()
    last = slow.submit(ME, 1)
    again = slow.submit(OTHER, 20)
    slow.takes_s = 0.05  # longer than a thread that has its turn takes to begin
    slow.may_end.set()

    assert last[0].result(WAIT_S)
    assert all(one.result(WAIT_S) for one in again)
    assert slow.began[6:].count(OTHER) >= 20
    assert ME in slow.began[6:10]  # not behind fifty turns of the other


class Postgres:
    """Answers when a test lets it."""

    def __init__(self) -> None:
        self.looks, self.answer = 0, "database away"
        self.may_answer = asyncio.Event()

    async def find_problem(self, _timeout_s: float) -> str | None:
        self.looks += 1
        await self.may_answer.wait()
        return self.answer or None


def probe(postgres: Postgres, clock: ManualClock) -> DatabaseProbe:
    return DatabaseProbe(cast(Database, postgres), clock)


async def test_concurrent_probes_share_one_query() -> None:
    postgres, clock = Postgres(), ManualClock()
    asked = probe(postgres, clock)
    first = asyncio.create_task(asked.find_problem())
    await asyncio.sleep(0)
    clock.now_s += 5
    others = [asyncio.create_task(asked.find_problem()) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()  # whoever asked first went away
    postgres.may_answer.set()

    assert await asyncio.gather(*others) == ["database away"] * 20
    assert postgres.looks == 1


async def test_a_result_is_cached_for_a_second() -> None:
    postgres, clock = Postgres(), ManualClock()
    postgres.may_answer.set()
    asked = probe(postgres, clock)
    assert await asked.find_problem() == "database away"
    postgres.answer = ""
    clock.now_s += 0.9
    assert await asked.find_problem() == "database away"
    clock.now_s += 0.1
    assert await asked.find_problem() is None
    assert postgres.looks == 2


ACROSS_TENANTS = {
    "auth/key_cache.py": {"find_working"},  # of API keys, of operator keys
    "online/answer/response_cache.py": {"read_response_cache_ttls", "record_cache_hits"},
    "online/admit/model_cache.py": {"read_models", "find_usable"},
    "auth/authentication.py": {"kind"},  # who is calling is not known yet
    "runtime/lost_commits.py": {"find_lost_commits"},  # of the installation
    "online/refusal_recorder.py": {"record_model_refusal"},  # of the installation
    "views/progress_poller.py": {"read_progress"},  # one look for all who follow
}
_CALL = re.compile(r"\brun_across_tenants\(\s*(\w+)")
_BEGINS = re.compile(r"\b(?:engine|_engine)\.(?:begin|connect|raw_connection)\(")


def sources() -> dict[str, str]:
    (root,) = map(Path, api.__path__)
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}


def test_queries_across_tenants_are_listed() -> None:
    found = {
        name: set(_CALL.findall(text))
        for name, text in sources().items()
        if _CALL.search(text) and name != "runtime/database.py"
    }
    assert found == ACROSS_TENANTS


def test_only_authenticated_operators_query_as_operators() -> None:
    callers = {name for name, text in sources().items() if "run_for_operators(" in text}
    assert callers == {"runtime/database.py", "admin/operator_requests.py"}


def test_transactions_begin_in_one_module() -> None:
    begins = Counter(name for name, text in sources().items() for _ in _BEGINS.findall(text))
    assert begins == {"runtime/database.py": 1}
