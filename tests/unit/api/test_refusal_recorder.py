"""Goal: repeated reports of a refused model cost no query, and an outage only delays its entry."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from api.online.admit.admission import PoolStates
from api.online.refusal_recorder import PER_ROUND_MAX, ModelRefusalRecorder, RecordedRefusals
from api.runtime.database import Database, DatabaseUnavailableError
from tenancy.model_refusals import ModelRefusal
from tests.support.capacity_records import capacity_record
from tests.support.clock import ManualClock
from topics.records.records import LoadedModel

VERSION = "a" * 64
REFUSAL = ModelRefusal("pool-small", VERSION, "signature")
DAY_S = 86_400.0


class AuditLog:
    """Counts what would be recorded, behind a database that may be away."""

    def __init__(self) -> None:
        self.asked: list[ModelRefusal] = []
        self.is_away, self.rest_s = False, DAY_S

    async def run_across_tenants(self, _: Callable[..., Any], refusal: ModelRefusal) -> float:
        if self.is_away:
            raise DatabaseUnavailableError
        self.asked.append(refusal)
        return self.rest_s


class Site:
    """A recorder whose replicas report when the test says so."""

    def __init__(self) -> None:
        self.clock, self.log = ManualClock(), AuditLog()
        self.pools = PoolStates(since_s=0.0)
        self.recorder = ModelRefusalRecorder(cast(Database, self.log), self.pools, self.clock)
        self._replicas = 0

    async def report(
        self,
        *reasons: str,
        version: str = VERSION,
        pool: str = "pool-small",
        state: str = "refused",
    ) -> None:
        """Report each reason by a new replica, in both classes, and run a round."""
        records = []
        for reason in reasons:
            self._replicas += 1
            models = [LoadedModel(version, state, reason=reason)]
            records += [
                capacity_record(
                    f"r{self._replicas}", pool=pool, job_class=one, available=False, models=models
                )
                for one in ("bulk", "interactive")
            ]
        self.pools.apply_records(records, now_s=self.clock.monotonic_s())
        await self.recorder.run_once()


@pytest.fixture
def site() -> Site:
    return Site()


async def test_restarted_replicas_cost_one_query_a_day(site: Site) -> None:
    for _ in range(100):
        await site.report("signature")
        site.clock.advance(15)
    assert site.log.asked == [REFUSAL]

    site.clock.advance(DAY_S - 100 * 15 - 1)
    await site.report("signature")
    assert len(site.log.asked) == 1
    site.clock.advance(1)
    await site.report("signature")
    assert site.log.asked == [REFUSAL] * 2


async def test_an_entry_of_another_process_counts_by_its_age(site: Site) -> None:
    site.log.rest_s = 60.0
    await site.report("signature")
    site.clock.advance(59)
    await site.report("signature")
    assert len(site.log.asked) == 1
    site.clock.advance(1)
    await site.report("signature")
    assert len(site.log.asked) == 2


async def test_each_pool_version_and_reason_is_recorded(site: Site) -> None:
    await site.report("signature", "memory")
    await site.report("signature", version="b" * 64)
    await site.report("signature", pool="other")
    assert site.log.asked == [
        REFUSAL,
        REFUSAL._replace(reason="memory"),
        REFUSAL._replace(version="b" * 64),
        REFUSAL._replace(pool="other"),
    ]


async def test_only_refusals_are_recorded(site: Site) -> None:
    await site.report("", state="loading")
    await site.report("", state="warm")
    assert site.log.asked == []


async def test_free_text_on_the_log_enters_no_entry(site: Site) -> None:
    await site.report("signature", version="my folder")
    await site.report("the prompt was: hi", "", "a" * 65)
    await site.report("signature", pool="a\nb")
    assert site.log.asked == [REFUSAL._replace(version=None)]


async def test_an_outage_delays_the_entry_and_is_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.log.is_away = True
    for _ in range(3):
        await site.report("signature")
        site.clock.advance(1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert site.log.asked == []

    site.log.is_away = False
    await site.report("signature")
    assert site.log.asked == [REFUSAL]


async def test_a_round_records_few_and_the_next_one_the_rest(site: Site) -> None:
    reasons = [f"reason_{chr(97 + number)}" for number in range(PER_ROUND_MAX + 3)]
    await site.report(*reasons)
    assert len(site.log.asked) == PER_ROUND_MAX
    await site.recorder.run_once()
    assert [one.reason for one in site.log.asked] == reasons


def test_the_refusal_used_least_recently_is_forgotten() -> None:
    recorded = RecordedRefusals(entries_max=2)
    first, second, third = (ModelRefusal("p", None, reason) for reason in "abc")
    recorded.add(first, due_s=10.0)
    recorded.add(second, due_s=10.0)
    assert not recorded.is_due(first, now_s=9.0)
    recorded.add(third, due_s=10.0)
    assert len(recorded) == 2
    assert [recorded.is_due(one, now_s=9.0) for one in (first, second, third)] == [
        False,
        True,
        False,
    ]
