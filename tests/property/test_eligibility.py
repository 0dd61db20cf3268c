"""Goal: work runs where its model version is warm, and waits for nothing else."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.capacity_records import grants_of
from tests.unit.batcher.builders import capacity
from tests.unit.batcher.test_dispatcher import Bench
from topics.records.eligibility import RequiredModel
from topics.records.records import Capacity, LoadedModel

VERSIONS = ("1" * 64, "2" * 64, "v3")
"""Two digests, and a version that was registered without one."""


def one_version(version: str) -> frozenset[str]:
    """Return the versions of a replica that has one."""
    return frozenset({version})


@dataclass(frozen=True)
class Replica:
    """A replica of one pool; without versions it is one of an earlier release."""

    versions: frozenset[str]
    publishes_grants: bool
    takes_adapters: bool

    def grant(self, bench: Bench, number: int, granted: int) -> None:
        """Publish grants as a release with or without `grants` does."""
        models = [
            LoadedModel(version, "warm", adapters_max=int(self.takes_adapters))
            for version in sorted(self.versions)
        ]
        known: Capacity = capacity(
            granted, replica_id=f"r{number}", items_per_s=1000.0, models=models
        )
        now_s = bench.clock.now_s
        if self.publishes_grants:
            adapters_max, versions = int(self.takes_adapters), sorted(self.versions)
            grants = grants_of(known, {"b": granted}, versions, adapters_max)
            bench.ledger.record_grants(grants, now_s=now_s)
        else:
            bench.ledger.record_capacity(known, now_s=now_s)


@dataclass(frozen=True)
class Work:
    """Items of one job: of a model, or of an adapter of it."""

    version: str
    is_adapter: bool
    count: int

    def add(self, bench: Bench, number: int) -> None:
        """Queue the items."""
        fields: dict[str, Any] = {"model_version": self.version}
        if self.is_adapter:
            fields = {"model_version": "adapter", "base_version": self.version}
        bench.items(self.count, job=number, **fields)


replicas_of_pool = st.lists(
    st.builds(
        Replica,
        st.sampled_from([frozenset[str](), frozenset(VERSIONS), *map(one_version, VERSIONS)]),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
work_of_pool = st.lists(
    st.builds(Work, st.sampled_from(VERSIONS), st.booleans(), st.integers(1, 40)), max_size=10
)


def may_run(required: RequiredModel, replica: Replica, replicas: list[Replica]) -> bool:
    """Return whether work may run at a replica of a pool, in other words than the batcher's."""
    version, has_adapter = required
    if version in replica.versions:
        return replica.takes_adapters or not has_adapter
    if replica.versions or has_adapter:
        return False
    listed = frozenset().union(*(one.versions for one in replicas))
    return version not in listed and not (listed and len(version) == 64)


def check_sent(bench: Bench, replicas: list[Replica]) -> None:
    for name, key, _ in bench.recorder.sent:
        assert may_run(key.required_model, replicas[int(name[1:])], replicas)


@settings(deadline=None)
@given(replicas_of_pool, work_of_pool, st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_a_batch_goes_to_a_replica_with_its_version_and_none_waits_beside_credit(
    replicas: list[Replica], work: list[Work], credits_of: list[int]
) -> None:
    bench = Bench(wait_s_max=0.0)
    for number, one in enumerate(work, 1):
        one.add(bench, number)
    for number, replica in enumerate(replicas):
        replica.grant(bench, number, credits_of[number % len(credits_of)])
    bench.dispatcher.dispatch()
    check_sent(bench, replicas)
    now_s = bench.clock.now_s
    for key in bench.queues.pools["p"].batch_keys if work else ():
        for number, replica in enumerate(replicas):
            if may_run(key.required_model, replica, replicas):
                assert not bench.ledger.available(f"r{number}", now_s=now_s)


@settings(deadline=None)
@given(replicas_of_pool, work_of_pool, st.integers(0, 4))
def test_all_versions_that_a_replica_has_finish_and_others_wait(
    replicas: list[Replica], work: list[Work], changed: int
) -> None:
    """In the middle a replica starts again with another version, as a new one."""
    bench = Bench(wait_s_max=0.0)
    for number, one in enumerate(work, 1):
        one.add(bench, number)
    for granted in range(10, 1000, 10):
        for number, replica in enumerate(replicas):
            replica.grant(bench, number, granted)
        bench.dispatcher.dispatch()
        if granted == 20 and changed < len(replicas):
            check_sent(bench, replicas)
            bench.recorder.sent.clear()
            replicas = [*replicas]
            replicas[changed] = Replica(
                one_version("v3"), publishes_grants=True, takes_adapters=False
            )
    check_sent(bench, replicas)
    waiting = bench.queues.pools["p"].batch_keys if work else {}
    assert not [
        key
        for key in waiting
        if any(may_run(key.required_model, replica, replicas) for replica in replicas)
    ]
