"""Goal: a search that exceeds its time limit is refused, and official clients do not retry it."""

from types import SimpleNamespace
from typing import Any

import pytest

from api.http.errors import ApiError
from api.runtime.object_threads import ObjectThreadPool
from api.runtime.tenant_slots import TenantSlots
from api.views import item_routes
from core.ids import new_uuid
from results.views.item_custom_ids import SearchOverdueError


async def test_a_search_timeout_advises_against_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> int:
        raise SearchOverdueError

    monkeypatch.setattr(item_routes, "find_index", read)
    services = SimpleNamespace(objects=None, object_threads=ObjectThreadPool(1))
    views: Any = SimpleNamespace(searches=TenantSlots("searches", 2), services=services)
    source: Any = SimpleNamespace(tenant_id=new_uuid(), total_count=1)
    with pytest.raises(ApiError) as refused:
        await item_routes._search(views, source, "a")
    assert (refused.value.status, refused.value.code) == (503, "search_overdue")
    assert refused.value.headers == {"retry-after": "30", "x-should-retry": "false"}
