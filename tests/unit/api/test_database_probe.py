"""Goal: readiness checks query Postgres one at a time and at most once a second."""

import asyncio
from typing import cast

from api.http.health import DatabaseProbe
from api.runtime.database import Database
from tests.support.clock import ManualClock


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
