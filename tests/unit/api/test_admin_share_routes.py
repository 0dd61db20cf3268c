"""Goal: operators see what the tenants of a pool are due and were served, or that nobody knows."""

import json
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from api.admin.admin_share_routes import show_tenants
from api.admin.operator_requests import OperatorRequest
from api.http.errors import ApiError
from api.http.paging import PageParameters
from api.online.served_shares import ServedShares, ServedTenant
from core.ids import TENANT, public_id
from tests.support.clock import ManualClock
from topics.records.records import ServiceReport, TenantService


class Site:
    """An api process that has read reports of one batcher."""

    def __init__(self) -> None:
        self.clock, self.served = ManualClock(), ServedShares()
        self.deleted: set[UUID] = set()
        for served in (0.0, 100.0):
            tenants = [TenantService(UUID(int=n), n * served, 5, counter=8.0) for n in (1, 2, 3)]
            self.served.apply([ServiceReport("b", "bulk", {"p": tenants})], now_s=0.0)

    async def show(self, **page: Any) -> dict[str, Any]:
        online = SimpleNamespace(clock=self.clock, served=self.served)
        http = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(online=online)))
        request = cast(OperatorRequest, SimpleNamespace(http=http, run=self._run))
        found = cast(PageParameters, SimpleNamespace(**({"after": None, "limit": 20} | page)))
        shown: dict[str, Any] = json.loads(bytes((await show_tenants("p", request, found)).body))
        return shown

    async def _run(self, _work: object, tenant_ids: Sequence[UUID]) -> dict[UUID, Any]:
        shares = {"p": 0.25, "*": 0.1}
        row = SimpleNamespace(name="n", weight=2, reserved_shares=shares, priority_class="high")
        return {key: row for key in tenant_ids if key not in self.deleted}


async def test_a_tenant_shows_its_claim_and_its_service() -> None:
    site = Site()
    first = (await site.show())["data"][0]
    assert first == {
        "id": public_id(TENANT, UUID(int=1)),
        "object": "pool.tenant",
        "pool": "p",
        "class": "bulk",
        "name": "n",
        "weight": 2,
        "reserved_share": 0.25,
        "priority_class": "high",
        "waiting_items": 5,
        "tokens_per_minute": 100,
        "served_share": 0.1667,
        "virtual_time": 8.0,
        "lead": 0.0,
        "age_s": 0.0,
    }


async def test_pages_follow_one_another_and_leave_out_deleted_tenants() -> None:
    site = Site()
    site.deleted.add(UUID(int=2))
    first = await site.show(limit=2)
    assert [one["id"] for one in first["data"]] == [public_id(TENANT, UUID(int=1))]
    assert (first["has_more"], first["last_id"]) == (True, public_id(TENANT, UUID(int=2)))
    rest = await site.show(limit=2, after=public_id(TENANT, UUID(int=2)))
    assert [one["id"] for one in rest["data"]] == [public_id(TENANT, UUID(int=3))]
    assert not rest["has_more"]


async def test_old_reports_are_not_shown() -> None:
    site = Site()
    site.clock.advance(10.1)
    with pytest.raises(ApiError) as caught:
        await site.show()
    refusal = caught.value
    assert (refusal.status, refusal.code) == (503, "service_unknown")
    assert (refusal.kind, refusal.headers) == ("service_unavailable_error", {"retry-after": "5"})


async def test_the_tenants_of_a_pool_are_computed_outside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, threads = Site(), set()

    def tenants(*_: object, now_s: float) -> list[ServedTenant]:
        assert now_s == 0.0
        threads.add(threading.current_thread())
        return []

    monkeypatch.setattr(site.served, "tenants", tenants)
    assert (await site.show())["data"] == []
    assert threading.current_thread() not in threads
    assert len(threads) == 1


async def test_a_page_after_an_unknown_id_begins_at_the_next_one() -> None:
    between = public_id(TENANT, UUID(int=1)) + "0"
    shown = await Site().show(after=between)
    assert [one["id"] for one in shown["data"]] == [
        public_id(TENANT, UUID(int=2)),
        public_id(TENANT, UUID(int=3)),
    ]
