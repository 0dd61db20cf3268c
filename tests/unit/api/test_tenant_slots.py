"""Goal: no tenant holds all slots, refusals have a retry time, and every slot is released."""

from contextlib import ExitStack
from uuid import UUID

import pytest

from api.http.errors import ApiError
from api.runtime.tenant_slots import TenantSlots

ME, OTHER = UUID(int=1), UUID(int=2)


def refusal(slots: TenantSlots, tenant_id: UUID) -> ApiError:
    with pytest.raises(ApiError) as refused, slots.acquire(tenant_id):
        pass
    return refused.value


@pytest.mark.parametrize(("count", "share"), [(1, 1), (2, 1), (5, 3), (512, 256)])
def test_a_tenant_may_use_half_of_the_slots(count: int, share: int) -> None:
    slots = TenantSlots("uploads", count, retry_after_s=2)
    with ExitStack() as taken:
        for _ in range(share):
            taken.enter_context(slots.acquire(ME))
        if count > share:
            mine = [refusal(slots, ME) for _ in range(count)]  # and none of these keeps a slot
            assert {(error.status, error.kind) for error in mine} == {(429, "rate_limit_exceeded")}
            assert mine[0].message == "Your organization has too many uploads at once."
        for _ in range(count - share):
            taken.enter_context(slots.acquire(OTHER))
        assert [refusal(slots, tenant_id).status for tenant_id in (ME, OTHER)] == [503, 503]
    for _ in range(2):
        with slots.acquire(ME):
            pass


def test_refusals_have_retry_after() -> None:
    slots = TenantSlots("uploads", 2, retry_after_s=2)
    with slots.acquire(ME):
        mine = refusal(slots, ME)
        with slots.acquire(OTHER):
            all_of_them = refusal(slots, OTHER)
    for error in (mine, all_of_them):
        assert (error.code, error.headers) == ("slow_down", {"retry-after": "2"})


def test_an_unassigned_slot_counts_for_the_total_only() -> None:
    slots = TenantSlots("requests_in_flight", 2)
    with slots.acquire_unassigned(), slots.acquire_unassigned() as claim:
        assert refusal(slots, ME).status == 503
        claim(ME)
    with slots.acquire_unassigned() as claim, slots.acquire(ME), pytest.raises(ApiError) as refused:
        claim(ME)
    assert refused.value.status == 429


def test_a_failure_releases_the_slot() -> None:
    slots = TenantSlots("audits", 1)
    for _ in range(2):
        with pytest.raises(LookupError), slots.acquire(ME):
            raise LookupError
