"""Goal: items of a version that no replica has wait, and cost other work nothing."""

from collections import Counter
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.support.capacity_records import grants_of
from tests.unit.batcher.builders import capacity
from tests.unit.batcher.test_dispatcher import Bench
from tests.unit.batcher.test_queue_maintenance import Bench as MaintenanceBench
from topics.records.eligibility import RequiredModel
from topics.records.records import LoadedModel

SIGNED, OTHER_SIGNED, SETTINGS = "1" * 64, "2" * 64, "3" * 64


class VersionBench(Bench):
    """A dispatcher whose replicas have versions."""

    def __init__(self) -> None:
        super().__init__(wait_s_max=0.0)

    def serve(
        self, version: str, count: int, *, replica: str = "r", adapters_max: int = 4, **fields: Any
    ) -> None:
        model = LoadedModel(version, "warm", adapters_max=adapters_max)
        self.grant(count, replica=replica, models=[model], **fields)


@pytest.fixture
def bench() -> VersionBench:
    return VersionBench()


def test_version_without_replica_blocks_no_other(bench: VersionBench) -> None:
    bench.items(10, job=1, model_version="v2")
    bench.items(10, job=2, model_version="v1")
    bench.serve("v1", 100)
    assert bench.dispatcher.dispatch() is None
    assert bench.recorder.jobs() == [2]
    assert bench.queues.item_count == 10
    bench.serve("v2", 100, replica="s")
    bench.dispatcher.dispatch()
    assert bench.recorder.replicas() == ["r", "s"]


def test_items_of_an_adapter_need_the_version_of_its_base_model(bench: VersionBench) -> None:
    bench.items(5, job=1, model_version="a1", base_version="v1")
    bench.serve("a1", 100, replica="not the base")
    bench.dispatcher.dispatch()
    assert bench.recorder.sent == []
    bench.serve("v1", 100)
    bench.dispatcher.dispatch()
    assert bench.recorder.replicas() == ["r"]


def test_items_of_an_adapter_go_only_to_replicas_that_take_adapters(bench: VersionBench) -> None:
    """Others would run the base model, or fail the items."""
    bench.items(5, model_version="a1", base_version="v1")
    bench.grant(100, replica="of an earlier release")
    bench.serve("v1", 100, replica="without adapters", adapters_max=0)
    bench.dispatcher.dispatch()
    assert bench.recorder.sent == []
    grants = grants_of(capacity(0, replica_id="r"), {"b": 100}, versions=["v1"])
    bench.ledger.record_grants(grants, now_s=bench.clock.now_s)
    bench.dispatcher.dispatch()
    assert bench.recorder.sent == []
    with_adapters = replace(grants, adapters_max=1)
    bench.ledger.record_grants(with_adapters, now_s=bench.clock.now_s)
    bench.dispatcher.dispatch()
    assert bench.recorder.replicas() == ["r"]


def test_signed_versions_go_only_to_replicas_that_list_them(bench: VersionBench) -> None:
    """A replica that lists none would run the weights that it has, without a word."""
    bench.grant(100, replica="of an earlier release")
    bench.serve(OTHER_SIGNED, 100, replica="other")
    bench.items(5, job=1, model_version=SIGNED)
    bench.items(5, job=2, model_version="1")  # registered without a digest
    bench.dispatcher.dispatch()
    assert (bench.recorder.jobs(), bench.recorder.replicas()) == ([2], ["of an earlier release"])
    bench.serve(SIGNED, 100)
    bench.dispatcher.dispatch()
    assert bench.recorder.replicas()[1:] == ["r"]


def test_listed_versions_stay_so_after_their_replicas_have_left(bench: VersionBench) -> None:
    """A digest of settings, which replicas do not list, runs again once none lists versions."""
    bench.serve(SIGNED, 100)
    bench.clock.advance(10.0)
    bench.ledger.forget_silent_replicas(now_s=bench.clock.now_s)
    bench.grant(100, replica="of an earlier release")
    for number, version in enumerate((SIGNED, SETTINGS), 1):
        bench.items(5, job=number, model_version=version)
    bench.dispatcher.dispatch()
    assert bench.recorder.jobs() == [2]


def test_digests_of_settings_run_where_no_replica_lists_versions(bench: VersionBench) -> None:
    """The pools of HTTP servers and simulated engines, in which versions follow each other."""
    for number, version in enumerate((SETTINGS, OTHER_SIGNED), 1):
        bench.items(5, job=number, model_version=version)
    bench.grant(100)
    bench.dispatcher.dispatch()
    assert sorted(bench.recorder.jobs()) == [1, 2]


@pytest.mark.parametrize("state", ["loading", "refused"])
def test_replica_that_does_not_serve_yet_is_ignored(bench: VersionBench, state: str) -> None:
    bench.items(5, model_version="v1")
    bench.grant(100, models=[LoadedModel("v1", state)])
    bench.dispatcher.dispatch()
    assert bench.recorder.sent == []
    assert not bench.ledger.pools


def test_replica_of_an_earlier_release_gets_all_versions(bench: VersionBench) -> None:
    for number in (1, 2):
        bench.items(5, job=number, model_version=f"v{number}")
    bench.grant(100)
    bench.dispatcher.dispatch()
    assert sorted(bench.recorder.jobs()) == [1, 2]


def test_versions_follow_the_grants_of_a_replica(bench: VersionBench) -> None:
    known = capacity(0)
    for version in ("v1", "v2"):
        grants = grants_of(known, {"b": 100}, versions=[version])
        bench.ledger.record_grants(grants, now_s=bench.clock.now_s)
        assert bench.ledger.is_served("p", RequiredModel(version))
    assert not bench.ledger.is_served("p", RequiredModel("v1"))
    bench.clock.advance(10.0)
    bench.ledger.forget_silent_replicas(now_s=bench.clock.now_s)
    assert not bench.ledger.is_served("p", RequiredModel("v2"))


def test_batches_of_an_adapter_keep_to_one_replica(bench: VersionBench) -> None:
    """Unless their replica has more than its part of all: its load is bounded."""
    done = Counter(f"r{number}" for number in range(4))
    runs: dict[str, Counter[str]] = {}
    for _ in range(40):
        for name in done:
            bench.serve("v1", done[name] + 100, replica=name, concurrency=50)
        for adapter in range(20):
            bench.items(2, model_version=f"a{adapter}", base_version="v1")
        bench.dispatcher.dispatch()
        for replica, key, chunks in bench.recorder.sent:
            runs.setdefault(key.model_version, Counter())[replica] += 1
            done[replica] += sum(len(chunk.items) for chunk in chunks)
        bench.recorder.sent.clear()
    kept = sum(max(replicas.values()) for replicas in runs.values())
    assert kept >= 0.8 * sum(replicas.total() for replicas in runs.values())
    assert {replica for replicas in runs.values() for replica in replicas} == {*done}


def test_adapter_does_not_wait_for_its_replica(bench: VersionBench) -> None:
    for number in range(2):
        bench.serve("v1", 4, replica=f"r{number}", concurrency=4)
    for _ in range(2):
        bench.items(4, model_version="a1", base_version="v1")
        bench.dispatcher.dispatch()
    assert sorted(bench.recorder.replicas()) == ["r0", "r1"]


def test_tenant_that_comes_is_not_served_like_one_that_waits_for_a_version() -> None:
    """Tenant 1 waits for v2 all the time; tenant 2 was served much; tenant 3 comes."""
    bench = VersionBench()
    bench.items(10, job=1, model_version="v2")
    bench.serve("v1", 10_000, concurrency=10)
    for _ in range(10):
        bench.items(100, job=2, model_version="v1")
        bench.dispatcher.dispatch()
    bench.items(1, job=2, model_version="v1")
    pool = bench.queues.pools["p"]
    pool.end_credit_of_blocked(partial(bench.ledger.is_served, "p"))
    bench.items(1, job=3, model_version="v1")
    counters = pool.counters
    assert counters.counter(UUID(int=3)) == counters.counter(UUID(int=2)) > 0


def test_tenants_keep_their_counters_while_no_version_of_their_pool_is_served() -> None:
    bench = VersionBench()
    bench.items(10, job=1, model_version="v1")
    bench.items(10, job=2, model_version="v2")
    pool = bench.queues.pools["p"]
    pool.counters.charge(UUID(int=1), 500.0, 500.0)
    pool.end_credit_of_blocked(partial(bench.ledger.is_served, "p"))
    assert pool.counters.counter(UUID(int=1)) == 500.0
    assert pool.counters.counter(UUID(int=2)) == 0.0


def test_unserved_items_make_space_for_other_versions_of_their_pool() -> None:
    bench = MaintenanceBench()
    bench.add("p", count=200)  # all of version "1"
    bench.clock.advance(60.0)
    served = capacity(100, models=[LoadedModel("v2", "warm")])
    bench.ledger.record_capacity(served, now_s=bench.clock.now_s)
    bench.maintenance.requeue_old()
    assert bench.recorder.requeued
