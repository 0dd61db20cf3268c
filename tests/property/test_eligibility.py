"""Goal: work runs where its model version is warm, and waits for nothing else."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.capacity_records import grants_of
from tests.unit.batcher.builders import capacity
from tests.unit.batcher.test_dispatcher import Bench
from topics.records.eligibility import is_served
from topics.records.records import Capacity, LoadedModel

VERSIONS = ("v1", "v2", "v3")


@dataclass(frozen=True)
class Replica:
    """A replica of one pool; without versions it is one of an earlier release."""

    versions: frozenset[str]
    publishes_grants: bool

    def grant(self, bench: Bench, number: int, granted: int) -> None:
        """Publish grants as a release with or without `grants` does."""
        models = [LoadedModel(version, "warm") for version in sorted(self.versions)]
        known: Capacity = capacity(
            granted, replica_id=f"r{number}", items_per_s=1000.0, models=models
        )
        now_s = bench.clock.now_s
        if self.publishes_grants:
            grants = grants_of(known, {"b": granted}, versions=sorted(self.versions))
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
        st.sampled_from([frozenset(), frozenset({"v1"}), frozenset({"v2"}), frozenset(VERSIONS)]),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
work_of_pool = st.lists(
    st.builds(Work, st.sampled_from(VERSIONS), st.booleans(), st.integers(1, 40)), max_size=10
)


def check_sent(bench: Bench, replicas: list[Replica]) -> None:
    for name, key, _ in bench.recorder.sent:
        assert is_served(key.required_version, replicas[int(name[1:])].versions)


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
            if is_served(key.required_version, replica.versions):
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
            replicas[changed] = Replica(frozenset({"v3"}), publishes_grants=True)
    check_sent(bench, replicas)
    waiting = bench.queues.pools["p"].batch_keys if work else {}
    assert not [
        key
        for key in waiting
        if any(is_served(key.required_version, replica.versions) for replica in replicas)
    ]
