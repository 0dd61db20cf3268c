"""Goal: calls are refused by their predicted wait, in the shedding order, with a true time."""

import pytest
from prometheus_client import REGISTRY

from api.online.admit.call_admission import service_rate
from api.online.admit.pool_demand import DEMAND_S_MAX, PoolDemand
from api.online.admit.waiting_tenants import REPORT_S_MAX, WaitingTenants
from api.online.settings import OnlineSettings
from jobs.expansion.windows import PoolCapacity
from tenancy.api_keys import Principal
from tests.support.admitted_calls import (
    CONCURRENCY,
    AdmissionSite,
    planned_call,
    retry_after,
    tenant,
)
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Demand, ServiceReport, TenantService

ME, OTHER = tenant(), tenant()
PER_S = CONCURRENCY  # calls that the pool of an `AdmissionSite` completes in a second
SETTINGS = OnlineSettings(predicted_wait_s_max=10.0)  # over-quota calls are shed above 7.5 s


def site(settings: OnlineSettings = SETTINGS) -> AdmissionSite:
    return AdmissionSite(settings)


def refused_total(shed_class: str) -> float:
    name = "millrace_overload_refused_total"
    return REGISTRY.get_sample_value(name, {"class": shed_class}) or 0.0


def demand_record(
    waiting: int, batcher: str = "b1", job_class: str = "interactive"
) -> list[ReceivedRecord]:
    value = encode(Demand(batcher, job_class, {"p": waiting}))
    return [ReceivedRecord("demand", 0, 0, batcher.encode(), kind_headers(Demand), value, 0)]


def service_reports(
    waiting: dict[Principal, int],
    batcher: str = "b1",
    *,
    job_class: str = "interactive",
    weight: int | None = None,
) -> list[ServiceReport]:
    tenants = [
        TenantService(one.tenant_id, 0.0, count, weight=one.weight if weight is None else weight)
        for one, count in waiting.items()
    ]
    return [ServiceReport(batcher, job_class, {"p": tenants})]


@pytest.mark.parametrize(
    ("of_me", "of_others", "status"), [(4, 5, None), (5, 4, 429), (0, 9, None), (4, 6, 503)]
)
def test_limits_on_open_calls(of_me: int, of_others: int, status: int | None) -> None:
    limited = site(OnlineSettings(open_calls_max=10, open_calls_per_tenant_max=5))
    limited.open(ME, of_me)
    limited.open(OTHER, of_others)
    refused = limited.refusal(planned_call(ME))
    assert (refused and refused.status) == status
    assert (refused and refused.code) == (status and "queue_full")


@pytest.mark.parametrize(
    ("pool", "execution_s", "per_s"),
    [
        (PoolCapacity(2.0, 4), 4.0, 2.0),
        (PoolCapacity(2.0, 4), 1.0, 4.0),  # the measured rate is that of little work
        (PoolCapacity(2.0, 4), 0.0, 0.0),  # nothing is known
        (PoolCapacity(0.0, 0), 1.0, 0.0),
    ],
)
def test_the_rate_of_a_pool(pool: PoolCapacity, execution_s: float, per_s: float) -> None:
    assert service_rate(pool, execution_s) == per_s


def test_a_full_pool_refuses_a_tenant_within_its_share_with_503() -> None:
    loaded = site()
    loaded.open(ME, CONCURRENCY + 10 * PER_S)
    assert loaded.refusal(planned_call(ME)) is None  # 10 s: the limit
    loaded.open(ME, 1)
    before = refused_total("interactive")
    refused = loaded.refusal(planned_call(ME))
    assert refused is not None
    assert (refused.status, refused.code) == (503, "queue_full")
    assert refused.message == "The model is overloaded."
    assert refused_total("interactive") == before + 1


def test_a_tenant_above_its_share_is_refused_before_the_others_with_429() -> None:
    loaded = site()
    loaded.open(OTHER, CONCURRENCY + 8 * PER_S)
    before = refused_total("over_quota_interactive")
    refused = loaded.refusal(planned_call(OTHER))
    assert refused is None  # alone it has no share to exceed, and the pool is not full
    loaded.open(ME, 1)
    refused = loaded.refusal(planned_call(OTHER))
    assert refused is not None
    assert (refused.status, refused.kind) == (429, "rate_limit_exceeded")
    assert "more than its share" in refused.message
    assert refused_total("over_quota_interactive") == before + 1
    assert loaded.refusal(planned_call(ME)) is None


def test_weights_decide_whose_share_is_exceeded() -> None:
    loaded = site()
    heavy = tenant(weight=9)
    loaded.open(heavy, 30)
    loaded.open(OTHER, 6)
    assert loaded.refusal(planned_call(heavy)) is None
    refused = loaded.refusal(planned_call(OTHER))
    assert refused is not None
    assert refused.status == 429


def test_a_call_that_would_miss_its_deadline_is_refused() -> None:
    loaded = site()
    loaded.open(ME, CONCURRENCY + 5 * PER_S)
    assert loaded.refusal(planned_call(ME, timeout_s=5.0)) is None
    refused = loaded.refusal(planned_call(ME, timeout_s=4.0))
    assert refused is not None
    assert refused.status == 503
    assert refused.message == "The call would not be served in time."


def test_a_refused_call_is_admitted_when_it_returns_as_told_and_a_new_one_is_not() -> None:
    loaded = site()
    opened = loaded.open(ME, CONCURRENCY + 10 * PER_S + 1)
    told_s = retry_after(loaded.refusal(planned_call(ME, body=b"first")))
    # 1 call above the limit, and three standard deviations, at 4 calls a second
    assert told_s == 2
    for number in range(4):  # each is told no less than the one before
        later_s = retry_after(loaded.refusal(planned_call(ME, body=b"%d" % number)))
        assert later_s >= told_s
    loaded.close(opened[:2])
    assert loaded.refusal(planned_call(ME, body=b"new")) is not None  # places are promised
    loaded.clock.advance(told_s - 0.1)
    assert loaded.refusal(planned_call(ME, body=b"first")) is not None  # too early
    loaded.clock.advance(0.2)
    assert loaded.refusal(planned_call(ME, body=b"first")) is None


def test_calls_that_wait_in_batchers_count_for_all_processes() -> None:
    loaded = site()
    loaded.demand.apply_records(demand_record(10 * PER_S), now_s=0.0)
    assert loaded.refusal(planned_call(ME)) is None
    loaded.demand.apply_records(demand_record(10 * PER_S + 1), now_s=0.0)
    assert loaded.refusal(planned_call(ME)) is not None


def test_calls_without_a_connection_here_count_for_the_share_of_their_tenant() -> None:
    """Those in the background, those whose client left, and those of other processes."""
    loaded = site()
    loaded.demand.apply_records(demand_record(8 * PER_S), now_s=0.0)
    assert loaded.refusal(planned_call(OTHER)) is None  # 8 s: only tenants above their share
    waiting = service_reports({OTHER: 8 * PER_S - 2, ME: 2})
    loaded.waiting.apply(waiting, now_s=0.0)
    refused = loaded.refusal(planned_call(OTHER, background=True))
    assert refused is not None
    assert refused.status == 429
    assert loaded.refusal(planned_call(ME)) is None


def test_a_tenant_with_the_most_calls_here_is_within_its_share_of_all_processes() -> None:
    loaded = site()
    loaded.open(ME, 6)
    loaded.open(tenant(), 1)
    loaded.demand.apply_records(demand_record(8 * PER_S), now_s=0.0)
    refused = loaded.refusal(planned_call(ME))
    assert refused is not None  # of the calls that are known
    assert refused.status == 429
    loaded.clock.advance(30.0)  # that place is kept no longer
    loaded.demand.apply_records(demand_record(8 * PER_S), now_s=30.0)
    loaded.waiting.apply(service_reports({OTHER: 8 * PER_S - 2, ME: 2}), now_s=30.0)
    assert loaded.refusal(planned_call(ME)) is None


def test_weights_decide_the_share_of_calls_that_wait_elsewhere() -> None:
    loaded = site()
    heavy = tenant(weight=9)
    loaded.demand.apply_records(demand_record(8 * PER_S), now_s=0.0)
    loaded.waiting.apply(service_reports({heavy: 24, OTHER: 8}), now_s=0.0)
    assert loaded.refusal(planned_call(heavy)) is None
    refused = loaded.refusal(planned_call(OTHER))
    assert refused is not None
    assert refused.status == 429


def test_reports_of_calls_that_wait_are_summed_up_and_end() -> None:
    waiting, key = WaitingTenants(), ME.tenant_id
    waiting.apply(service_reports({ME: 3, OTHER: 0}), now_s=0.0)
    waiting.apply(service_reports({ME: 4}, "b2", weight=0), now_s=1.0)
    waiting.apply(service_reports({ME: 100}, "b3", job_class="bulk"), now_s=1.0)
    found = waiting.find("p", now_s=1.0)
    assert (found.calls, found.call_sum, found.weight_sum) == ({key: 7}, 7, 1)
    assert (found.weights_with(key, 5), found.weights_with(OTHER.tenant_id, 5)) == (1, 6)
    waiting.apply(service_reports({ME: 4}, "b2"), now_s=REPORT_S_MAX + 0.5)
    assert waiting.find("p", now_s=REPORT_S_MAX + 0.5).call_sum == 4  # the first batcher ended
    assert waiting.find("q", now_s=REPORT_S_MAX + 0.5).call_sum == 0
    assert waiting.find("p", now_s=2 * REPORT_S_MAX + 0.6).call_sum == 0


def test_parallel_calls_of_a_tenant_keep_the_class_in_which_they_were_promised_a_place() -> None:
    loaded = site()
    opened = loaded.open(OTHER, CONCURRENCY + 10 * PER_S + 1)
    calls = [planned_call(ME, body=b"%d" % number) for number in range(30)]
    told = [retry_after(loaded.refusal(call)) for call in calls]
    loaded.clock.advance(max(told) + 0.1)
    loaded.close(opened[:25])
    loaded.open(ME, 24)  # as many as return first take their tenant above its share
    refused = loaded.refusal(planned_call(ME, body=b"new"))
    assert refused is not None
    assert refused.status == 429
    assert loaded.refusal(calls[-1]) is None


def test_a_flood_of_one_tenant_leaves_the_promises_of_others() -> None:
    loaded = site()
    for _ in range(9):
        loaded.open(tenant(), CONCURRENCY + PER_S)
    before_s = retry_after(loaded.refusal(planned_call(ME)))
    for number in range(2_000):
        loaded.refusal(planned_call(OTHER, body=b"%d" % number))
        loaded.refusal(planned_call(OTHER, body=b"same"))
    # It may have an eleventh of the 4 calls a second of the next minute: 6 s of them.
    assert loaded.admission.promises.of_tenant("p", OTHER.tenant_id) == 22
    assert retry_after(loaded.refusal(planned_call(tenant()))) <= before_s + 8
    assert loaded.admission.promises.of_tenant("p", ME.tenant_id) == 1


def test_a_promise_is_used_by_a_call_that_returns_to_a_pool_without_load() -> None:
    loaded = site()
    opened = loaded.open(OTHER, CONCURRENCY + 10 * PER_S + 1)
    call = planned_call(ME)
    told_s = retry_after(loaded.refusal(call))
    loaded.close(opened)
    loaded.clock.advance(told_s - 0.5)
    assert loaded.refusal(call) is None
    assert loaded.admission.promises.count == 1  # another call of the same body may return
    loaded.clock.advance(1.0)
    assert loaded.refusal(call) is None
    assert loaded.admission.promises.count == 0


def test_demand_is_the_sum_of_batchers_that_report() -> None:
    demand = PoolDemand()
    assert demand.waiting("p", now_s=0.0) == 0
    demand.apply_records(demand_record(7) + demand_record(9, "b2"), now_s=1.0)
    demand.apply_records(demand_record(100, "b3", job_class="bulk"), now_s=1.0)
    assert demand.waiting("p", now_s=1.0) == 16
    demand.apply_records(demand_record(4), now_s=1.0 + DEMAND_S_MAX + 0.1)
    assert demand.waiting("p", now_s=1.0 + DEMAND_S_MAX + 0.1) == 4
    assert demand.waiting("p", now_s=20.0) == 0


def test_a_pool_without_reports_refuses_nobody() -> None:
    loaded = site()
    loaded.open(ME, 1000, pool="q")
    assert loaded.refusal(planned_call(ME, timeout_s=1.0)) is None


def test_gauges_show_the_predicted_wait_and_the_promises() -> None:
    loaded = site()
    loaded.open(ME, CONCURRENCY + 11 * PER_S)
    assert loaded.refusal(planned_call(ME)) is not None
    loaded.admission.publish_metrics(now_s=0.0)
    name = "millrace_online_predicted_wait_seconds"
    assert REGISTRY.get_sample_value(name, {"pool": "p"}) == 11.0
    assert REGISTRY.get_sample_value("millrace_online_retry_promises") == 1


def test_promises_end_without_load() -> None:
    loaded = site()
    opened = loaded.open(ME, CONCURRENCY + 11 * PER_S)
    told_s = retry_after(loaded.refusal(planned_call(ME)))
    loaded.close(opened)
    loaded.admission.publish_metrics(now_s=told_s + SETTINGS.retry_grace_s + 0.1)
    assert REGISTRY.get_sample_value("millrace_online_retry_promises") == 0


@pytest.mark.parametrize("text", ["0.5,0.25,0.75", "0.5,0.75", "0.1,0.5,1.5", "0,0.5,1", "a,b,c"])
def test_ratios_that_do_not_ascend_to_one_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="shed_ratios"):
        OnlineSettings.model_validate({"shed_ratios": text})
