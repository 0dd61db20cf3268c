"""Goal: queues report what tenants were served, and charge what other batchers served."""

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any
from uuid import UUID

import pytest

from batcher.faust_app.ordered_acks import AckTicket
from batcher.policy.service_exchange import RemoteService, ServiceExchange
from batcher.policy.service_ledger import KEEP_S
from batcher.queueing import tenant_service
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.queue_levels import UNAPPLIED_MAX, TenantQueue
from batcher.queueing.queues import Queues
from batcher.queueing.tenant_service import (
    charge_corrections,
    charge_remote_service,
    pool_shares,
    prune_service,
    report_service,
)
from core.tenant_claims import PLAIN_CLAIM
from tests.unit.batcher.builders import buffered, job_ref
from topics.records.records import (
    Item,
    JobRef,
    JobUsage,
    ServiceReport,
    TenantService,
    TenantUsage,
    UsageReport,
)

LIGHT, HEAVY = UUID(int=1), UUID(int=2)


def job_of(tenant_id: UUID, **claim: Any) -> JobRef:
    return job_ref(tenant_id.int, tenant_id=tenant_id, pool="p", **claim)


def queues_with(*chunks: tuple[JobRef, int]) -> Queues:
    queues = Queues(items_max=100_000, bytes_max=2**30)
    for job, count in chunks:
        add(queues, job, count)
    return queues


def add(queues: Queues, job: JobRef, count: int, first: int = 0) -> None:
    queues.add(buffered(job, range(first, first + count)), now_s=0.0)


def pop(
    queues: Queues, count: int, owner: Callable[[JobRef], UUID] = attrgetter("tenant_id")
) -> Counter[UUID]:
    """Return how many items of each tenant or job are dispatched next, one at a time."""
    found: Counter[UUID] = Counter()
    for _ in range(count):
        (queue,) = queues.pools["p"].batch_keys.values()
        (chunk,) = queues.pop_batch(queue, item_count_max=1, token_count_max=10**9)
        found[owner(chunk.job)] += 1
    return found


def test_a_weight_holds_for_items_that_waited_before() -> None:
    queues = queues_with((job_of(LIGHT), 200), (job_of(HEAVY), 100))
    assert pop(queues, 40) == {LIGHT: 20, HEAVY: 20}
    add(queues, job_of(HEAVY, weight=3), 100, first=100)
    assert pop(queues, 80) == {LIGHT: 20, HEAVY: 60}


def test_service_is_reported_for_a_while_after_the_tenant_waits_no_more() -> None:
    queues = queues_with((job_of(LIGHT), 10), (job_of(HEAVY, weight=2), 2))
    pop(queues, 6)
    (report,) = report_service(queues).values()
    tokens = {one.tenant_id: (one.served, one.waiting) for one in report}
    light, heavy = tokens[LIGHT], tokens[HEAVY]
    assert (light[1], heavy[1]) == (6, 0)
    assert light[0] / 4 == heavy[0] * 2 / 2
    prune_service(queues, now_s=0)
    prune_service(queues, now_s=KEEP_S - 1)
    assert report_service(queues) == {"p": report}
    prune_service(queues, now_s=KEEP_S)
    assert [one.tenant_id for one in report_service(queues)["p"]] == [LIGHT]
    pop(queues, 6)
    prune_service(queues, now_s=2 * KEEP_S)
    prune_service(queues, now_s=3 * KEEP_S)
    assert report_service(queues) == {}


def test_a_report_has_the_same_tenants_each_time_within_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenant_service, "TENANTS_MAX", 3)
    monkeypatch.setattr(tenant_service, "ENTRIES_MAX", 4)
    queues = queues_with(*((job_of(UUID(int=number)), 10) for number in (5, 3, 4, 1)))
    for number in (7, 8):
        add(queues, job_ref(number, pool="other"), 10)
    for _ in range(3):
        report = report_service(queues)
        assert [one.tenant_id.int for one in report["p"]] == [1, 3, 4]
        assert [one.tenant_id.int for one in report["other"]] == [7]
        pop(queues, 3)


def test_remote_service_delays_a_tenant_and_an_unknown_one_is_ignored() -> None:
    queues = queues_with((job_of(LIGHT), 50), (job_of(HEAVY), 50))
    pop(queues, 2)
    (report,) = report_service(queues).values()
    of_one_item = report[0].served
    unknown = RemoteService("p", UUID(int=9), 1e9)
    elsewhere = RemoteService("other", LIGHT, 1e9)
    charge_remote_service(queues, [RemoteService("p", LIGHT, 10 * of_one_item), unknown, elsewhere])
    assert pop(queues, 10) == {HEAVY: 10}
    assert pop(queues, 10) == {LIGHT: 5, HEAVY: 5}


def test_shares_of_pools_are_published_beside_other_batchers_only() -> None:
    queues = queues_with((job_of(LIGHT), 10), (job_of(HEAVY, weight=3), 30))
    exchange = ServiceExchange("a", "bulk")
    assert pool_shares(queues, exchange, now_s=0) == {}
    waiting = [TenantService(HEAVY, 0.0, 60)]
    exchange.apply(ServiceReport("b", "bulk", {"p": waiting}), now_s=0)
    assert pool_shares(queues, exchange, now_s=0) == {"p": 2.0}


def test_a_batcher_that_becomes_the_only_one_charges_by_weights_again() -> None:
    queues = queues_with((job_of(LIGHT), 1_000), (job_of(HEAVY, reserved=0.5), 1_000))
    exchange = ServiceExchange("a", "bulk")
    waiting = [TenantService(UUID(int=number), 0.0, 60) for number in range(10, 100)]
    exchange.apply(ServiceReport("b", "bulk", {"p": waiting}), now_s=0)
    pool_shares(queues, exchange, now_s=0)
    assert pop(queues, 100)[HEAVY] > 90  # others are served at b
    assert pool_shares(queues, exchange, now_s=100.0) == {}
    assert pop(queues, 400) == {LIGHT: 200, HEAVY: 200}


def test_a_raised_weight_is_of_one_claim() -> None:
    queues = queues_with((job_of(LIGHT), 1_000), (job_of(HEAVY, reserved=0.5), 100))
    pool = queues.pools["p"]
    pool.raise_weights({LIGHT: 1.0, HEAVY: 50.0})
    add(queues, job_of(HEAVY), 300, first=100)
    assert pop(queues, 100) == {LIGHT: 50, HEAVY: 50}
    add(queues, job_of(HEAVY, reserved=0.5), 1, first=400)
    pool.raise_weights({LIGHT: 1.0, HEAVY: 50.0})
    for chunk in queues.snapshot():
        if chunk.job.tenant_id == HEAVY:
            queues.remove(chunk)
    add(queues, job_of(HEAVY, reserved=0.5), 100)
    assert pop(queues, 100) == {LIGHT: 50, HEAVY: 50}


def test_reports_and_shares_have_the_claim_of_a_tenant_whose_records_are_not_added_yet() -> None:
    """Redelivered items are checked first; deferred records are read again."""
    queues = queues_with((job_of(LIGHT), 10))
    claim = {"weight": 50, "reserved": 0.5, "tenant_class": 0}
    chunk = buffered(job_of(HEAVY, **claim), range(10))
    queues.reserve(chunk)
    for now_s in (0.0, 2 * KEEP_S):
        prune_service(queues, now_s=now_s)
    entry = next(one for one in report_service(queues)["p"] if one.tenant_id == HEAVY)
    assert (entry.waiting, entry.weight, entry.reserved, entry.tenant_class) == (10, 50, 0.5, 0)
    exchange = ServiceExchange("a", "bulk")
    exchange.apply(ServiceReport("b", "bulk", {"p": []}), now_s=0)
    shares = pool_shares(queues, exchange, now_s=0)
    assert shares == {"p": pytest.approx(50 / 0.95)}  # the lower class has 5 %
    queues.release(chunk)
    prune_service(queues, now_s=4 * KEEP_S)
    assert queues.pools["p"].left_claims == {}


def test_a_claim_that_a_tenant_no_longer_has_is_forgotten() -> None:
    queues = Queues(items_max=100, bytes_max=2**20)
    for claim in ({"weight": 50, "reserved": 0.5}, {}):
        chunk = buffered(job_of(HEAVY, **claim), range(1))
        queues.add(chunk, now_s=0.0)
        queues.remove(chunk)
    assert queues.pools["p"].known_claim(HEAVY) == PLAIN_CLAIM


def test_a_tenant_that_used_more_than_its_estimates_waits_for_the_others() -> None:
    queues = queues_with((job_of(LIGHT), 100), (job_of(HEAVY), 100))
    assert pop(queues, 4) == {LIGHT: 2, HEAVY: 2}
    tenants = [TenantUsage(HEAVY, 100.0), TenantUsage(UUID(int=99), 5.0)]
    charge_corrections(queues, UsageReport("r", "p", "bulk", tenants), batcher_id="b")
    charge_corrections(queues, UsageReport("r", "another", "bulk", tenants), batcher_id="b")
    assert pop(queues, 10) == {LIGHT: 10}
    assert report_service(queues)["p"][0].served == 12 * 10  # corrections are not reported twice


def test_output_tokens_are_charged_by_their_weight() -> None:
    queues = Queues(items_max=1000, bytes_max=2**30, output_weight=lambda _pool, _endpoint: 5.0)
    for tenant_id, output in ((LIGHT, 0), (HEAVY, 10)):
        ticket = AckTicket(("requests.bulk", 0), None, 50, 0.0)
        items = [Item(index, "c", b"", 10, output_token_count=output) for index in range(50)]
        queues.add(BufferedChunk(job_of(tenant_id), items, ticket), now_s=0.0)
    assert pop(queues, 60) == {LIGHT: 50, HEAVY: 10}


def test_no_more_is_refunded_than_was_charged_here() -> None:
    """The estimates may be those of a process before: a refund of them would be credit."""
    queues = queues_with((job_of(LIGHT), 100), (job_of(HEAVY), 100))
    assert pop(queues, 4) == {LIGHT: 2, HEAVY: 2}
    refund = UsageReport("r", "p", "bulk", [TenantUsage(HEAVY, -1e9)])
    charge_corrections(queues, refund, batcher_id="b")
    charge_corrections(queues, refund, batcher_id="b")
    assert pop(queues, 12) == {LIGHT: 5, HEAVY: 7}  # two are refunded, once


@pytest.mark.parametrize("correction", [float("nan"), float("inf"), float("-inf")])
def test_a_correction_that_is_no_number_is_ignored(correction: float) -> None:
    queues = queues_with((job_of(LIGHT), 100), (job_of(HEAVY), 100))
    report = UsageReport(
        "r",
        "p",
        "bulk",
        [TenantUsage(HEAVY, correction)],
        [JobUsage("b", HEAVY, job_of(HEAVY).job_id, correction)],
    )
    charge_corrections(queues, report, batcher_id="b")
    assert pop(queues, 4) == {LIGHT: 2, HEAVY: 2}


@pytest.mark.parametrize(
    ("batcher_id", "served"),
    [("b", (10, 0)), ("another", (5, 5))],
    ids=["charged here", "charged by another batcher"],
)
def test_a_job_is_charged_what_its_items_used(batcher_id: str, served: tuple[int, int]) -> None:
    """The jobs of a tenant share by tokens used, not by estimates."""
    modest, greedy = (job_ref(number, tenant_id=LIGHT, pool="p") for number in (1, 2))
    queues = queues_with((modest, 100), (greedy, 100))
    assert pop(queues, 4, attrgetter("job_id")) == {modest.job_id: 2, greedy.job_id: 2}
    jobs = [
        JobUsage(batcher_id, LIGHT, greedy.job_id, 100.0),
        JobUsage(batcher_id, LIGHT, UUID(int=99), 5.0),
        JobUsage(batcher_id, HEAVY, greedy.job_id, 5.0),
    ]
    charge_corrections(queues, UsageReport("r", "p", "bulk", [], jobs), batcher_id="b")
    assert pop(queues, 10, attrgetter("job_id")) == +Counter(
        {modest.job_id: served[0], greedy.job_id: served[1]}
    )


def test_a_job_whose_items_are_all_at_replicas_is_charged_when_it_returns() -> None:
    """Usage arrives while the job has no chunk here: one job keeps one item, the other many."""
    modest, greedy = (job_ref(number, tenant_id=LIGHT, pool="p") for number in (1, 2))
    queues = queues_with((modest, 1_000), (greedy, 1))
    served: Counter[UUID] = Counter()
    for step in range(440):
        job_id = next(iter(pop(queues, 1, attrgetter("job_id"))))
        served[job_id] += 1
        if job_id == greedy.job_id:
            jobs = [JobUsage("b", LIGHT, job_id, 90.0)]  # it used 100 tokens, and not 10
            charge_corrections(queues, UsageReport("r", "p", "bulk", [], jobs), batcher_id="b")
            add(queues, greedy, 1, first=1 + step)
    assert served[greedy.job_id] == pytest.approx(40, abs=2)
    assert served[modest.job_id] == pytest.approx(400, abs=2)


def test_corrections_of_a_job_that_is_away_are_summed_and_refund_no_more_than_its_lead() -> None:
    modest, other = (job_ref(number, tenant_id=LIGHT, pool="p") for number in (1, 2))
    queues = queues_with((modest, 1_000), (other, 1))
    pop(queues, 4)
    for correction in (300.0, -100.0, -1_000.0):
        jobs = [JobUsage("b", LIGHT, other.job_id, correction)]
        charge_corrections(queues, UsageReport("r", "p", "bulk", [], jobs), batcher_id="b")
    add(queues, other, 100, first=1)
    assert pop(queues, 20, attrgetter("job_id")) == {modest.job_id: 10, other.job_id: 10}


def test_corrections_of_jobs_that_never_return_are_bounded() -> None:
    queue = TenantQueue()
    queue.add(buffered(job_of(LIGHT), range(1)), 0)
    for number in range(UNAPPLIED_MAX + 10):
        queue.correct(UUID(int=100 + number), 5.0)
    assert len(queue._unapplied) == UNAPPLIED_MAX
    assert UUID(int=100) not in queue._unapplied
