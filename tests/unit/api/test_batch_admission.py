"""Goal: new batches are refused before calls, in the shedding order, and never by a failure."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from api.batches.batch_admission import BatchAdmission, batch_refusal
from api.files.first_line import first_model
from api.http.errors import ApiError
from api.online.settings import OnlineSettings
from core.errors import MillraceError
from core.estimates.rate_history import PoolRate
from core.ids import new_uuid
from core.overload.shedding import ShedClass
from jobs.estimates.job_eta import PoolSnapshot
from jobs.estimates.pool_rates import PoolState
from jobs.estimates.pool_work import TenantSums
from storage.objects.errors import ObjectStoreUnavailableError
from tests.support.admitted_calls import (
    CONCURRENCY,
    AdmissionSite,
    planned_call,
    retry_after,
    tenant,
)
from tests.support.memory_objects import MemoryStore
from tests.support.pool_scaling import pool_scaling, scaling_record

ENDPOINT = "/v1/embeddings"
LINE = b'{"custom_id":"1","method":"POST","url":"/v1/embeddings","body":{"model":"m"}}\n'
ME, OTHER = tenant(), tenant()
PER_S = CONCURRENCY  # calls that a pool completes in a second
WAIT_S = 100.0  # so over-quota batches are refused above 25 s, batches above 50 s


class Site:
    """A pool `p` of the model `m`, a pool `q` of another, and an input file."""

    def __init__(self, *, backlog_s_max: float | None = None, content: bytes = LINE) -> None:
        settings = OnlineSettings(predicted_wait_s_max=WAIT_S)
        self.load = AdmissionSite(settings, ("p", "q"))
        self.sums: dict[Any, TenantSums] = {}
        self.woken: list[str] = []
        self.reads = 0
        self.failure: MillraceError | None = None
        self.objects = MemoryStore()
        self.objects.objects["files/1"] = content
        online: Any = SimpleNamespace(
            admission=self.load.admission,
            clock=self.load.clock,
            settings=settings,
            models=SimpleNamespace(serving=lambda _, __: {"m": "p", "other": "q"}),
            sleeping=self.load.sleeping,
            wake_requests=SimpleNamespace(note_batch=self.woken.append),
            wakes=self.load.wakes,
        )
        estimates: Any = self
        self.admission = BatchAdmission(online, estimates, backlog_s_max)

    async def pool_snapshot(self, _: str) -> PoolSnapshot:
        return PoolSnapshot(PoolState(True, PoolRate(10.0)), None, self.sums)

    async def run(self, *_: object) -> str:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return "files/1"

    def wait(self, seconds: float, pool: str = "p") -> None:
        """Let calls wait in a pool for so long."""
        self.load.open(OTHER, round(CONCURRENCY + seconds * PER_S), pool)

    def refusal(self) -> ApiError | None:
        return asyncio.run(self.admission.refusal(self.request(), new_uuid(), ENDPOINT))

    def wake(self) -> list[str]:
        asyncio.run(self.admission.wake(self.request(), new_uuid(), ENDPOINT))
        return self.woken

    def request(self) -> Any:
        services = SimpleNamespace(
            objects=self.objects, object_threads=SimpleNamespace(require_capacity=lambda: None)
        )
        return SimpleNamespace(
            tenant_id=ME.tenant_id, principal=ME, services=services, run=self.run
        )


def status(refusal: ApiError | None) -> int | None:
    return None if refusal is None else refusal.status


def over_share() -> dict[Any, TenantSums]:
    return {ME.tenant_id: TenantSums(900.0), OTHER.tenant_id: TenantSums(100.0)}


@pytest.mark.parametrize(
    ("wait_s", "within_share", "above_share"),
    [(25.0, None, None), (26.0, None, 429), (50.0, None, 429), (51.0, 503, 429)],
)
def test_batches_are_refused_by_the_wait_of_calls(
    wait_s: float, within_share: int | None, above_share: int | None
) -> None:
    site = Site()
    site.wait(wait_s)
    assert status(site.refusal()) == within_share
    site.sums = over_share()
    assert status(site.refusal()) == above_share
    assert site.load.refusal(planned_call(ME)) is None  # calls come after all batches


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [(0.0, 1000.0, None), (0.0, 1001.0, 503), (300.0, 300.0, 429), (200.0, 300.0, None)],
)
def test_batches_are_refused_by_the_backlog(
    mine: float, others: float, expected: int | None
) -> None:
    """100 s of work; a tenant above its share is refused above 50 s."""
    site = Site(backlog_s_max=100.0)
    site.sums = {ME.tenant_id: TenantSums(mine), OTHER.tenant_id: TenantSums(others)}
    assert status(site.refusal()) == expected


def test_the_time_is_that_in_which_the_backlog_falls_to_the_limit() -> None:
    site = Site(backlog_s_max=100.0)
    site.sums = {OTHER.tenant_id: TenantSums(1_125.0)}  # at 10 items a second
    refusal = site.refusal()
    assert refusal is not None
    assert (refusal.code, retry_after(refusal)) == ("queue_full", 13)
    assert "in about 13 s" in refusal.message
    site.sums = {OTHER.tenant_id: TenantSums(1_125.0 - 13 * 10.0)}
    assert site.refusal() is None


def test_a_long_wait_is_told_in_the_message_and_bounded_in_the_header() -> None:
    refusal = batch_refusal(ShedClass.BULK, 7_200.0, s_max=59)
    assert retry_after(refusal) == 59
    assert "in about 7200 s" in refusal.message


def test_only_the_pool_of_the_batch_counts() -> None:
    site = Site()
    site.wait(90.0, "q")
    assert site.refusal() is None
    assert site.reads == 1


def test_nothing_is_read_while_no_pool_is_under_load() -> None:
    site = Site()
    site.wait(20.0)
    assert site.refusal() is None
    assert site.reads == 0


def test_a_failure_refuses_no_batch() -> None:
    site = Site()
    site.wait(90.0)
    site.failure = ObjectStoreUnavailableError()
    assert site.refusal() is None


BLANK = b" \n" * 1_000
LONG = LINE.replace(b'"m"', b'"m","input":"%b"' % (b"x" * 600_000))


@pytest.mark.parametrize("content", [BLANK + LINE, LONG])
def test_neither_blank_lines_nor_a_long_first_line_evade_admission(content: bytes) -> None:
    site = Site(content=content)
    site.wait(90.0)
    assert status(site.refusal()) == 503


@pytest.mark.parametrize("content", [b" " * 1_100_000 + LINE, LINE.replace(b'"m"', b'"unknown"')])
def test_a_batch_of_an_unknown_model_is_refused_while_every_pool_is_overloaded(
    content: bytes,
) -> None:
    site = Site(content=content)
    site.wait(90.0)
    assert site.refusal() is None  # it may be for `q`
    site.wait(70.0, "q")
    refusal = site.refusal()
    assert status(refusal) == 503
    before = retry_after(refusal)
    site.wait(200.0)
    assert retry_after(site.refusal()) == before  # of `q`, which admits batches first


@pytest.mark.parametrize(
    ("start", "model"),
    [
        (LINE, "m"),
        (b"\xef\xbb\xbf\n" + LINE + LINE, "m"),
        (b" \t\n\r\n  " + LINE, "m"),  # lines that are blank for intake
        (LINE[:-1], "m"),  # the only line
        (LINE[:40], None),
        (b"", None),
        (b'{"body":{"model":7}}\n', None),
        (b'{"body":[]}\n', None),
        (b"\xff\n", None),
    ],
)
def test_the_model_of_the_first_line(start: bytes, model: str | None) -> None:
    assert first_model(start) == model


def sleeping_site(*, content: bytes = LINE) -> Site:
    """An autoscaler runs, and no pool has a replica."""
    site = Site(content=content)
    site.load.clock.advance(60.0)
    site.load.pools.apply_records([], now_s=60.0)
    site.load.wakes.apply_records([scaling_record(pool_scaling("p", at_s=60.0))])
    return site


def test_a_batch_wakes_the_pool_of_its_first_line() -> None:
    assert sleeping_site().wake() == ["p"]


def test_a_batch_of_an_unknown_model_wakes_nothing() -> None:
    assert sleeping_site(content=LINE.replace(b'"m"', b'"n"')).wake() == []


def test_no_file_is_read_while_all_pools_have_replicas() -> None:
    site = Site()
    site.load.wakes.apply_records([scaling_record(pool_scaling("p"))])
    assert site.wake() == []
    assert site.reads == 0


def test_a_file_that_cannot_be_read_wakes_nothing() -> None:
    site = sleeping_site()
    site.failure = ObjectStoreUnavailableError()
    assert site.wake() == []
    assert site.reads == 1
