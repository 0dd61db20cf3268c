"""Goal: records become signals that count nothing twice and nothing that is over."""

from functools import partial
from typing import Any

import pytest

from autoscaler.metrics import DROPPED
from autoscaler.policy.signals import ReplicaState
from autoscaler.signals.signal_store import PoolInputs, SignalStore
from tests.support.autoscaler_world import POOL, bulk_of, capacity_of, demand_of
from tests.support.scaling import NOW_S
from topics.records.records import Demand, DemandTokens, EndpointCompute, OutputMean
from topics.records.scaling import Backlog, BacklogBucket, RoleLoad, WakeRequest


def inputs_of(store: SignalStore, now_s: float = NOW_S, **fields: Any) -> PoolInputs:
    given: dict[str, Any] = {"ordered": 0, "has_arrivals": False} | fields
    return store.take_inputs(POOL, now_s, **given)


def demand(batcher: str, **fields: Any) -> Demand:
    job_class = fields.pop("job_class", "interactive")
    return Demand(batcher, job_class, {}, pools={POOL: demand_of(**fields)})


def backlog(at_s: float, *buckets: BacklogBucket, intake: str = "i", **fields: Any) -> Backlog:
    given: dict[str, Any] = {"pool": POOL, "epoch": 1} | fields
    return Backlog(intake_id=intake, at_s=at_s, buckets=list(buckets), **given)


def test_the_classes_of_a_replica_are_one_replica() -> None:
    store = SignalStore()
    for job_class, rate, load in (("bulk", 900.0, 10.0), ("interactive", 1000.0, 5.0)):
        store.record(
            [
                capacity_of(
                    "r",
                    job_class=job_class,
                    lifecycle="warm",
                    tokens_per_s=rate,
                    load_tokens=load,
                    in_danger=job_class == "bulk",
                )
            ],
            NOW_S,
        )
    (one,) = inputs_of(store).replicas
    assert (one.tokens_per_s, one.load_tokens, one.has_suspects) == (1000.0, 15.0, True)


@pytest.mark.parametrize(
    ("lifecycle", "available", "state"),
    [
        ("", True, ReplicaState.WARM),
        ("", False, ReplicaState.STARTING),
        ("starting", False, ReplicaState.STARTING),
        ("warm", False, ReplicaState.WARM),
        ("asleep", False, ReplicaState.ASLEEP),
        ("draining", True, ReplicaState.DRAINING),
        ("of-the-future", True, ReplicaState.WARM),
    ],
)
def test_the_state_of_a_replica_is_its_lifecycle_or_whether_it_is_available(
    lifecycle: str, available: bool, state: ReplicaState
) -> None:
    store = SignalStore()
    store.record([capacity_of("r", lifecycle=lifecycle, available=available)], NOW_S)
    assert inputs_of(store).replicas[0].state is state


def test_a_silent_replica_is_stale_after_three_seconds_and_gone_after_ten() -> None:
    store = SignalStore()
    store.record([capacity_of("r"), capacity_of("s")], NOW_S)
    for second in range(1, 12):
        store.record([capacity_of("s")], NOW_S + second)
    assert inputs_of(store, NOW_S + 4).age_s["replicas"] == 4
    assert len(inputs_of(store, NOW_S + 10).replicas) == 2
    assert [one.replica_id for one in inputs_of(store, NOW_S + 11).replicas] == ["s"]
    assert inputs_of(store, NOW_S + 11).age_s["replicas"] == 0


def test_replicas_that_were_never_heard_are_stale_only_if_some_were_ordered() -> None:
    store = SignalStore()
    assert inputs_of(store).age_s["replicas"] == 0
    assert inputs_of(store, ordered=1).age_s["replicas"] > 3
    assert inputs_of(store).age_s["online"] == 0
    assert inputs_of(store, has_arrivals=True).age_s["online"] > 3


def test_silence_of_a_topic_that_cannot_be_read_is_never_absence() -> None:
    for is_readable in (True, False):
        store = SignalStore(partial(_answer, is_readable))
        store.record([capacity_of("r")], NOW_S)
        age_s = inputs_of(store, NOW_S + 100, ordered=1).age_s["replicas"]
        assert (age_s > 3) is not is_readable


def test_arrivals_are_differences_of_totals_from_the_first_record_on() -> None:
    store = SignalStore()
    store.record([demand("a", arrived=1000.0, items=10)], NOW_S)
    assert inputs_of(store).arrived_tokens == 0
    store.record([demand("a", arrived=1300.0, items=12), demand("b", arrived=9e9)], NOW_S + 1)
    assert inputs_of(store).arrived_tokens == 300
    assert inputs_of(store).arrived_tokens == 0  # counted once
    store.record([Demand("a", "interactive", {})], NOW_S + 2)
    store.record([demand("a", arrived=1350.0, items=13)], NOW_S + 3)
    assert inputs_of(store).arrived_tokens == 50
    store.record([demand("a", arrived=5.0, items=1)], NOW_S + 4)  # it began anew
    assert inputs_of(store).arrived_tokens == 0


def test_only_interactive_demand_is_online_and_an_ended_batcher_counts_no_more() -> None:
    store = SignalStore()
    store.record([demand("a", waiting=70.0), demand("b", waiting=5.0)], NOW_S)
    store.record([demand("c", waiting=900.0, job_class="bulk")], NOW_S)
    assert inputs_of(store).waiting_tokens == 75
    store.record([demand("b", waiting=5.0)], NOW_S + 11)
    assert inputs_of(store, NOW_S + 5).age_s["online"] == 5
    later = inputs_of(store, NOW_S + 12)
    assert (inputs_of(store, NOW_S + 12).waiting_tokens, later.age_s["online"]) == (5, 1)


def test_output_tokens_are_weighted_as_the_engines_measured_them() -> None:
    store = SignalStore()
    compute = [EndpointCompute("/v1/completions", 0.001, 0.007)]
    store.record([capacity_of("r", compute=compute)], NOW_S)
    one = DemandTokens(
        prompt_tokens=10.0,
        output_tokens=10.0,
        arrived_items=0,
        arrived_prompt_tokens=0.0,
        arrived_output_tokens=0.0,
        deadline_s=NOW_S + 9,
    )
    store.record([Demand("a", "interactive", {}, pools={POOL: one})], NOW_S)
    found = inputs_of(store)
    assert found.waiting_tokens == pytest.approx(80.0)
    assert found.next_deadline_s == NOW_S + 9


def test_the_newest_snapshot_counts_and_none_is_added() -> None:
    store = SignalStore()
    store.record([backlog(NOW_S, bulk_of(100.0, NOW_S + 60))], NOW_S)
    store.record([backlog(NOW_S - 1, bulk_of(500.0, NOW_S + 60), intake="old")], NOW_S)
    assert [one.prompt_tokens for one in inputs_of(store).bulk] == [100.0]
    store.record([backlog(NOW_S + 1, bulk_of(40.0, NOW_S + 60), intake="j")], NOW_S + 1)
    assert [one.prompt_tokens for one in inputs_of(store).bulk] == [40.0]


def test_a_snapshot_is_stale_after_ten_seconds_and_one_without_work_never() -> None:
    store = SignalStore()
    store.record([backlog(NOW_S, bulk_of(100.0, NOW_S + 60))], NOW_S)
    assert inputs_of(store, NOW_S + 9).age_s["bulk"] <= 3
    assert inputs_of(store, NOW_S + 11).age_s["bulk"] > 3
    store.record([backlog(NOW_S + 12)], NOW_S + 12)
    assert inputs_of(store, NOW_S + 500).age_s["bulk"] == 0


def test_a_pool_that_newer_snapshots_leave_out_has_no_bulk_work() -> None:
    store = SignalStore()
    store.record([backlog(NOW_S, bulk_of(100.0, NOW_S + 60), validating=2)], NOW_S)
    for second in range(1, 13):
        store.record([backlog(NOW_S + second, pool="other")], NOW_S + second)
    found = inputs_of(store, NOW_S + 12)
    assert (found.bulk, found.uploads, found.age_s["bulk"]) == ((), 0, 0)


def test_uploads_and_refused_calls_count_for_seconds() -> None:
    store = SignalStore()
    store.record([WakeRequest(api_id="a", pool=POOL, at_s=NOW_S, uploads=2, calls=3)], NOW_S)
    store.record([WakeRequest(api_id="b", pool=POOL, at_s=NOW_S, uploads=1)], NOW_S)
    found = inputs_of(store, NOW_S + 2)
    assert (found.uploads, found.calls) == (3, 3)
    later = inputs_of(store, NOW_S + 4)
    assert (later.uploads, later.calls) == (0, 0)


def wake(number: int, now_s: float, **fields: Any) -> WakeRequest:
    return WakeRequest(api_id="a", pool=f"pool-{number}", at_s=now_s, **({"uploads": 1} | fields))


def test_wake_requests_are_forgotten_by_age_and_bounded() -> None:
    store = SignalStore()
    store.record([wake(1, NOW_S, calls=1)], NOW_S)
    assert store.pools == store.busy_pools == {"pool-1"}
    store.record([wake(2, NOW_S + 4)], NOW_S + 4)
    assert store.pools == {"pool-1", "pool-2"}  # no decision took the call
    store.forget_arrivals()
    assert store.pools == {"pool-2"}
    inputs_of(store, NOW_S + 8)  # a decision, without further wake requests
    assert store.pools == set()

    dropped = DROPPED.labels("wakes")._value.get()
    store.record([wake(number, NOW_S + 9, calls=1) for number in range(10_003)], NOW_S + 9)
    assert len(store.pools) == 10_000
    assert DROPPED.labels("wakes")._value.get() == dropped + 3
    store.record([wake(0, NOW_S + 10, uploads=7)], NOW_S + 10)  # a known one is renewed
    assert store.backlog.uploads("pool-0", NOW_S + 10) == 7
    store.record([wake(20_000, NOW_S + 13)], NOW_S + 13)
    store.forget_arrivals()
    assert store.pools == {"pool-0", "pool-20000"}


def test_a_new_pool_takes_the_place_of_those_that_no_intake_tells_of() -> None:
    store = SignalStore()
    store.record([backlog(NOW_S, pool=f"pool-{number}") for number in range(10_001)], NOW_S)
    assert len(store.pools) == 10_000
    later_s = NOW_S + 301
    store.record([backlog(later_s, bulk_of(5.0, later_s + 60))], later_s)
    assert store.pools == store.busy_pools == {POOL}


def test_calls_of_wake_requests_tell_of_work_and_are_no_tokens() -> None:
    store = SignalStore()
    store.record([demand("a")], NOW_S)
    store.record([WakeRequest(api_id="a", pool=POOL, at_s=NOW_S, calls=3)], NOW_S)
    store.record([demand("a", arrived=90.0, items=3)], NOW_S + 1)
    found = inputs_of(store)
    assert (found.calls, found.arrived_tokens) == (3, 90.0)


def test_the_correction_is_measured_over_estimated_output() -> None:
    store = SignalStore()
    endpoint = "/v1/completions"
    bucket = BacklogBucket(NOW_S + 60, endpoint, items=4, prompt_tokens=1.0, output_tokens=400.0)
    store.record([backlog(NOW_S, bucket)], NOW_S)
    assert inputs_of(store).correction == {}
    means = [OutputMean(endpoint, None, 250.0), OutputMean("/v1/embeddings", None, 5.0)]
    store.record([capacity_of("r", output_means=means)], NOW_S)
    assert inputs_of(store).correction == {endpoint: 2.5}


def test_the_load_of_roles_is_kept_for_seconds() -> None:
    store = SignalStore()
    store.record([RoleLoad(role="api", process_id="1", at_s=NOW_S, work_per_s=5.0)], NOW_S)
    store.record([RoleLoad(role="api", process_id="2", at_s=NOW_S, work_per_s=float("nan"))], NOW_S)
    store.record([RoleLoad(role="intake", process_id="3", at_s=NOW_S, work_per_s=5.0)], NOW_S)
    heard = store.backlog.loads("api", NOW_S + 5)
    assert [(one.process_id, age_s) for one, age_s in heard] == [("1", 5.0)]
    assert store.backlog.loads("api", NOW_S + 11) == []


def _answer(is_readable: bool, topic: str) -> bool:
    return is_readable or topic != "capacity"


def test_bulk_work_that_was_not_read_is_not_taken_as_none() -> None:
    store = SignalStore()
    assert inputs_of(store).age_s["bulk"] == 0
    assert inputs_of(store, had_bulk=True).age_s["bulk"] > 3
    store.record([backlog(NOW_S, pool="other")], NOW_S)
    assert inputs_of(store, had_bulk=True).age_s["bulk"] == 0  # an intake is heard
    store.record([backlog(NOW_S + 100)], NOW_S)
    assert inputs_of(store).age_s["bulk"] > 3  # of a clock that is ahead
    store.record([backlog(NOW_S, bulk_of(-1.0, NOW_S + 60))], NOW_S)
    assert inputs_of(store).age_s["bulk"] > 3
    store.record([backlog(NOW_S + 1, bulk_of(1.0, NOW_S + 60))], NOW_S + 1)
    assert inputs_of(store, NOW_S + 1).age_s["bulk"] == 0


def test_snapshots_of_a_database_whose_time_is_lower_count_after_three_seconds() -> None:
    store = SignalStore()
    store.record([backlog(NOW_S, bulk_of(100.0, NOW_S + 60))], NOW_S)
    for second in (2, 4):
        store.record([backlog(NOW_S - 30, bulk_of(7.0, NOW_S + 60))], NOW_S + second)
    assert [one.prompt_tokens for one in inputs_of(store, NOW_S + 4).bulk] == [7.0]
