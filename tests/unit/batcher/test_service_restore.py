"""Goal: a batcher that starts knows how far ahead each tenant was, within bounds."""

from uuid import UUID

import pytest

from batcher.outbound import service_recovery
from batcher.outbound.batch_sender import BatcherIdentity
from batcher.outbound.service_publisher import ServicePublisher
from batcher.outbound.service_recovery import aged_reports, read_leads
from batcher.policy import service_restore
from batcher.policy.service_restore import AGE_S_MAX, EXPECTED_S, AgedReport, restored_leads
from batcher.queueing.queues import Queues
from batcher.queueing.tenant_service import (
    charge_corrections,
    prune_service,
    report_service,
    restore_service,
)
from tests.support.recording_sender import SentRecords
from tests.unit.batcher.test_tenant_service import HEAVY, LIGHT, add, job_of, pop, queues_with
from topics.errors import KafkaUnavailableError
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import ServiceReport, TenantService, TenantUsage, UsageReport
from topics.settings import KafkaSettings

A, B, C, D = (UUID(int=number) for number in range(1, 5))


def report(
    batcher: str, age_s: float, leads: dict[UUID, float], *, job_class: str = "bulk"
) -> AgedReport:
    tenants = [TenantService(tenant, 1e9, 5, lead, 7.0) for tenant, lead in leads.items()]
    return AgedReport(age_s, ServiceReport(batcher, job_class, {"p": tenants} if tenants else {}))


def leads_of(*reports: AgedReport) -> dict[UUID, float]:
    found = restored_leads(reports, "bulk").get("p", {})
    return {tenant: one.lead for tenant, one in found.items()}


def test_the_last_report_of_a_batcher_with_tenants_counts() -> None:
    reports = [report("a", 3, {A: 0, B: 10}), report("a", 2, {A: 0, B: 40}), report("a", 1, {})]
    assert leads_of(*reports) == {A: 0, B: 40}


def test_reports_that_are_old_or_of_another_class_say_nothing() -> None:
    assert leads_of(report("a", AGE_S_MAX + 1, {A: 0, B: 40})) == {}
    assert leads_of(report("a", 1, {A: 0, B: 40}, job_class="interactive")) == {}


def test_the_newer_report_of_a_tenant_counts_and_others_are_moved_to_its_scale() -> None:
    newer, older = report("b", 1, {B: 0, C: 30}), report("a", 9, {A: 0, B: 200, D: 250})
    assert leads_of(older, newer) == {A: 0, B: 200, C: 230, D: 250}
    assert leads_of(report("a", 9, {A: 0}), report("b", 1, {B: 0, C: 30})) == {A: 0, B: 0, C: 30}


@pytest.mark.parametrize("lead", [float("nan"), float("inf"), -1.0])
def test_a_lead_that_is_no_number_is_ignored(lead: float) -> None:
    assert leads_of(report("a", 1, {A: lead, B: 5})) == {B: 0}


def test_leads_are_restored_for_a_bounded_number_of_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_restore, "TENANTS_MAX", 3)
    assert set(leads_of(report("b", 2, {C: 0, D: 0}), report("a", 1, {A: 0, B: 0}))) == {A, B, C}


def restarted(before: Queues) -> Queues:
    """Return the queues of a process that starts with the report of the one before."""
    aged = [AgedReport(1.0, ServiceReport("a", "bulk", report_service(before)))]
    queues = queues_with()
    restore_service(queues, restored_leads(aged, "bulk"), now_s=100.0)
    return queues


def ahead() -> Queues:
    """Return queues in which HEAVY has used 200 tokens, 20 items, more than LIGHT."""
    queues = queues_with((job_of(LIGHT), 100), (job_of(HEAVY), 100))
    pop(queues, 4)
    usage = UsageReport("r", "p", "bulk", [TenantUsage(HEAVY, 200.0)])
    charge_corrections(queues, usage, batcher_id="b")
    return queues


@pytest.mark.parametrize("order", [(LIGHT, HEAVY), (HEAVY, LIGHT)])
def test_a_tenant_that_was_ahead_is_ahead_after_a_restart(order: tuple[UUID, UUID]) -> None:
    queues = restarted(ahead())
    for tenant in order:
        add(queues, job_of(tenant), 100)
    assert pop(queues, 20) == {LIGHT: 20}
    assert pop(queues, 10) == {LIGHT: 5, HEAVY: 5}


def test_a_second_restart_before_a_tenant_comes_keeps_its_lead() -> None:
    queues = restarted(ahead())
    add(queues, job_of(LIGHT), 100)
    first = AgedReport(5.0, ServiceReport("a", "bulk", report_service(ahead())))
    second = AgedReport(1.0, ServiceReport("b", "bulk", report_service(queues)))
    again = queues_with()
    restore_service(again, restored_leads([first, second], "bulk"), now_s=0.0)
    for tenant in (HEAVY, LIGHT):
        add(again, job_of(tenant), 100)
    assert pop(again, 20) == {LIGHT: 20}


def test_a_tenant_that_does_not_come_soon_earns_no_credit() -> None:
    queues = restarted(ahead())
    add(queues, job_of(HEAVY), 100)
    pop(queues, 10)
    expects = []
    for seconds in (EXPECTED_S, EXPECTED_S + 1):
        prune_service(queues, now_s=100.0 + seconds)
        expects.append(queues.pools["p"].counters.expects_clients)
    assert expects == [True, False]
    add(queues, job_of(LIGHT), 100)
    assert pop(queues, 10) == {LIGHT: 5, HEAVY: 5}


def test_an_empty_pool_is_kept_while_its_tenants_are_expected() -> None:
    queues = restarted(ahead())
    assert queues.forget_empty_pools(()) == []
    prune_service(queues, now_s=101.0 + EXPECTED_S)
    assert queues.forget_empty_pools(()) == ["p"]


def test_what_was_charged_before_may_be_refunded_after_and_no_more() -> None:
    before = ahead()
    charged = before.pools["p"].charges.served(HEAVY)
    queues = restarted(before)
    for tenant in (HEAVY, LIGHT):
        add(queues, job_of(tenant), 100)
    refund = UsageReport("r", "p", "bulk", [TenantUsage(HEAVY, -1e9)])
    charge_corrections(queues, refund, batcher_id="b")
    counters = queues.pools["p"].counters
    assert counters.counter(LIGHT) - counters.counter(HEAVY) == charged - 200


def received(appended_ms: int, batcher: str, leads: dict[UUID, float]) -> ReceivedRecord:
    value = encode(report(batcher, 0, leads).report)
    return ReceivedRecord("service", 0, 0, None, kind_headers(ServiceReport), value, appended_ms)


def test_ages_are_by_the_brokers_time_of_the_own_report() -> None:
    records = [received(1000, "a", {A: 0}), received(61_500, "own", {}), received(62_000, "b", {})]
    assert [one.age_s for one in aged_reports(records, "own")] == [60.5, 0.0, 0.0]
    assert aged_reports(records, "unknown") == []


def test_a_topic_that_cannot_be_read_leaves_all_tenants_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Producer(SentRecords):
        def flush(self, timeout_s: float) -> None:
            assert timeout_s <= service_recovery.READ_S_MAX
            raise KafkaUnavailableError("no answer")

    producer = Producer()
    found = read_leads(
        KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        producer,  # type: ignore[arg-type]
        ServicePublisher(producer, BatcherIdentity("own", "bulk")),  # type: ignore[arg-type]
        job_class="bulk",
        client_id="own",
    )
    assert found == {}
    assert len(producer.records) == 1
