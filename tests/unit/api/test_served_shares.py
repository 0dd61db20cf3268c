"""Goal: the shares of tenants are those of the last minute, over all batchers of a class."""

from uuid import UUID

import pytest

from api.online import served_shares
from api.online.served_shares import (
    CACHE_S,
    SILENCE_S_MAX,
    SPAN_S,
    ServedShares,
    newest_reports,
)
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import ServiceReport, TenantService

ONE, TWO = UUID(int=1), UUID(int=2)


def report(batcher: str, *tenants: TenantService, job_class: str = "bulk") -> ServiceReport:
    return ServiceReport(batcher, job_class, {"p": list(tenants)})


def tenant(
    key: UUID, served: float, waiting: int = 0, *, weight: int = 1, lead: float = 0.0
) -> TenantService:
    return TenantService(key, served, waiting, weight=weight, counter=5.0, lead=lead)


def test_tokens_are_differences_times_the_weight_over_all_batchers() -> None:
    shares = ServedShares()
    shares.apply([report("a", tenant(ONE, 1000.0, weight=3), tenant(TWO, 50.0))], now_s=0)
    shares.apply([report("b", tenant(ONE, 7.0, weight=3))], now_s=0)
    shares.apply([report("a", tenant(ONE, 1010.0, 4, weight=3), tenant(TWO, 60.0, 2))], now_s=1)
    shares.apply([report("b", tenant(ONE, 17.0, 9, weight=3, lead=2.0))], now_s=1)
    one, two = shares.tenants("p", "bulk", now_s=2)
    assert (one.tenant_id, one.tokens, one.waiting) == (ONE, 60.0, 13)
    assert one.share == pytest.approx(6 / 7)
    assert (one.virtual_time, one.lead) == (5.0, 2.0)  # of b, where most of it waits
    assert two.tokens == 10
    assert two.share == pytest.approx(1 / 7)
    assert shares.tenants("p", "interactive", now_s=2) == []
    assert shares.tenants("q", "bulk", now_s=2) == []


def test_service_of_a_minute_ago_is_forgotten_and_a_silent_batcher_has_nothing_waiting() -> None:
    shares = ServedShares()
    for now_s in range(10):
        shares.apply([report("a", tenant(ONE, 10.0 * now_s, 5))], now_s=now_s)
    assert shares.tenants("p", "bulk", now_s=9)[0].tokens == 90
    (late,) = shares.tenants("p", "bulk", now_s=10 + SILENCE_S_MAX)
    assert (late.waiting, late.tokens) == (0, 90)
    assert shares.age_s(now_s=10) == 1
    assert shares.tenants("p", "bulk", now_s=10 + SPAN_S) == []
    assert shares.age_s(now_s=10 + SPAN_S) is None


def test_a_batcher_that_forgot_a_tenant_counts_from_0() -> None:
    shares = ServedShares()
    for served in (100.0, 110.0, 5.0):
        shares.apply([report("a", tenant(ONE, served, 1))], now_s=0)
    assert shares.tenants("p", "bulk", now_s=0)[0].tokens == 15


def test_the_age_is_known_while_reports_are_applied() -> None:
    shares = ServedShares()
    shares.apply([report("a", tenant(ONE, 1.0))], now_s=3)
    with shares._lock:  # as another thread that applies reports or computes the tenants
        assert shares.age_s(now_s=5) == 2


def test_tenants_are_computed_once_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = ServedShares()
    shares.apply([report("a", tenant(TWO, 1.0, 1), tenant(ONE, 1.0, 1))], now_s=0)
    first = shares.tenants("p", "bulk", now_s=0)
    assert [one.tenant_id for one in first] == [ONE, TWO]
    shares.apply([report("a", tenant(ONE, 1.0, 7))], now_s=0.9)
    assert shares.tenants("p", "bulk", now_s=CACHE_S - 0.1) is first
    (later,) = shares.tenants("p", "bulk", now_s=CACHE_S)
    assert later.waiting == 7
    monkeypatch.setattr(served_shares, "CACHED_MAX", 2)
    for pool in ("q", "r", "s"):
        assert shares.tenants(pool, "bulk", now_s=CACHE_S) == []
    assert len(shares._computed) == 2


def test_slots_older_than_a_minute_are_dropped_whole() -> None:
    shares = ServedShares()
    for now_s in range(200):
        shares.apply([report("a", tenant(ONE, 10.0 * now_s, 5))], now_s=now_s)
    slots = shares._batchers["a"].slots
    assert len(slots) == 12
    assert sum(one["p", ONE] for one in slots.values()) == 600
    assert shares.tenants("p", "bulk", now_s=199)[0].tokens == 600


def test_the_last_report_of_a_batcher_counts() -> None:
    shares = ServedShares()
    older, newer = (report("a", tenant(ONE, 0.0, waiting)) for waiting in (1, 2))
    records = [
        ReceivedRecord("service", 0, offset, b"a", kind_headers(ServiceReport), encode(one), 0)
        for offset, one in enumerate((older, newer))
    ]
    shares.apply(newest_reports(records), now_s=0)
    assert shares.tenants("p", "bulk", now_s=0)[0].waiting == 2


def test_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_shares, "ENTRIES_MAX", 3)
    shares = ServedShares()
    for name in ("a", "b"):
        found = [tenant(UUID(int=n), 0.0, 1) for n in range(2)]
        shares.apply([report(name, *found)], now_s=0)
    assert sum(one.waiting for one in shares.tenants("p", "bulk", now_s=0)) == 3
