"""Goal: the capacity of a pool is the sum of the recent records of its replicas."""

from uuid import UUID

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.windows import PoolCapacity
from tests.support.capacity_records import capacity_record
from tests.support.clock import ManualClock
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobRef, LoadedModel, OutputMean


def test_capacities_of_available_bulk_replicas_add_up() -> None:
    capacities = PoolCapacities(ManualClock())
    for record in (
        capacity_record("r1", 10),
        capacity_record("r2", 5),
        capacity_record("r3", 7, pool="b"),
        capacity_record("r4", 9, pool="b", available=False),
        capacity_record("r5", 9, job_class="interactive"),
        capacity_record("r1", 9, job_class="interactive"),
    ):
        capacities.update([record])
    assert capacities.pools() == {"pool-small": PoolCapacity(15, 8), "b": PoolCapacity(7, 4)}


def test_the_newest_record_counts_until_it_is_too_old() -> None:
    clock = ManualClock()
    capacities = PoolCapacities(clock)
    capacities.update([capacity_record("r1", 10)])
    clock.now_s = 2.0
    capacities.update([capacity_record("r2", 20)])
    capacities.update([capacity_record("r2", 30)])
    assert capacities.pools() == {"pool-small": PoolCapacity(40, 8)}
    clock.now_s = 3.0
    assert capacities.pools() == {"pool-small": PoolCapacity(30, 4)}
    clock.now_s = 5.0
    assert capacities.pools() == {}


def test_a_replica_joins_at_its_start_new_epoch_or_after_silence() -> None:
    clock = ManualClock()
    capacities = PoolCapacities(clock)
    joined = {}
    for second, record in enumerate(
        (
            capacity_record("r1", 10),
            capacity_record("r1", 10),
            capacity_record("r2", 10, pool="b"),
            capacity_record("r2", 10, pool="b"),
            capacity_record("r1", 10, epoch=2),
            capacity_record("r3", 10, job_class="interactive"),
        )
    ):
        clock.now_s = float(second)
        capacities.update([record])
        joined[second] = capacities.joined_s()
    assert joined[1] == {"pool-small": 0.0}
    assert joined[3] == {"pool-small": 0.0, "b": 2.0}
    assert joined[5] == {"pool-small": 4.0, "b": 2.0}
    clock.now_s = 20.0  # every record is too old
    capacities.pools()
    capacities.update([capacity_record("r1", 10, epoch=2)])
    assert capacities.joined_s() == {"pool-small": 20.0, "b": 2.0}


def test_a_tombstone_removes_a_replica() -> None:
    capacities = PoolCapacities(ManualClock())
    capacities.update([capacity_record("r1", 10)])
    capacities.update([ReceivedRecord("capacity", 0, 1, b"r1:bulk", [], None, 0)])
    assert capacities.pools() == {}


def test_batchers_are_counted_once_each_over_all_replicas() -> None:
    capacities = PoolCapacities(ManualClock())
    assert capacities.batcher_count() == 0
    capacities.update([capacity_record("r1", 10, granted={"b1": 5, "b2": 7})])
    capacities.update([capacity_record("r2", 10, pool="b", granted={"b2": 1, "b3": 0})])
    assert capacities.batcher_count() == 3


def test_in_flight_jobs_are_those_that_live_replicas_of_both_classes_named_last() -> None:
    clock = ManualClock()
    capacities = PoolCapacities(clock)
    one, two, three = (UUID(int=number) for number in range(3))
    capacities.update(
        [
            capacity_record("r1", in_flight_jobs=[one, two]),
            capacity_record("r1", in_flight_jobs=None),  # names none: the jobs stay
            capacity_record("r2", job_class="interactive", in_flight_jobs=[three]),
        ]
    )
    assert capacities.in_flight_jobs() == {one, two, three}
    clock.now_s = 2.0
    capacities.update([capacity_record("r1", in_flight_jobs=[two])])
    assert capacities.in_flight_jobs() == {two, three}
    clock.now_s = 4.0  # nothing came from the second replica
    assert capacities.in_flight_jobs() == {two}
    capacities.update([capacity_record("r1", in_flight_jobs=[])])
    assert capacities.in_flight_jobs() == frozenset()


def test_the_expected_output_is_what_the_replicas_of_the_pool_learned() -> None:
    capacities, chat = PoolCapacities(ManualClock()), "/v1/chat/completions"
    one, other = UUID(int=1), UUID(int=2)

    def expected(tenant_id: UUID, pool: str = "pool-small", endpoint: str = chat) -> float:
        job = JobRef(UUID(int=7), 0, tenant_id, "m", "1", pool, endpoint, "in", 0.0)
        return capacities.expected_output(job)

    assert expected(one) == OUTPUT_TOKENS_PRIOR
    learned = [OutputMean(chat, one, 10.0), OutputMean(chat, None, 400.0)]
    capacities.update([capacity_record("r1", output_means=learned)])
    capacities.update([capacity_record("r2", output_means=[OutputMean(chat, one, 30.0)])])
    capacities.update([capacity_record("r1")])  # unchanged
    assert (expected(one), expected(other)) == (20.0, 400.0)
    assert expected(one, pool="another") == expected(one, endpoint="/v1/completions")
    assert expected(one, pool="another") == OUTPUT_TOKENS_PRIOR
    capacities.update([capacity_record("r1", output_means=[OutputMean(chat, one, 50.0)])])
    assert (expected(one), expected(other)) == (40.0, OUTPUT_TOKENS_PRIOR)


def test_a_replica_that_loads_its_model_counts_for_nothing() -> None:
    capacities = PoolCapacities(ManualClock())
    for number, state in enumerate(("loading", "refused")):
        models = [LoadedModel("v1", state)]
        capacities.update([capacity_record(f"r{number}", available=False, models=models)])
    assert (capacities.pools(), capacities.joined_s(), capacities.versions()) == ({}, {}, {})


def test_the_versions_of_a_pool_are_those_of_its_available_replicas() -> None:
    capacities = PoolCapacities(ManualClock())
    for replica, version, available in (
        ("r1", "v1", True),
        ("r2", "v2", True),
        ("r3", "v3", False),
    ):
        models = [LoadedModel(version, "warm")]
        capacities.update([capacity_record(replica, available=available, models=models)])
    assert capacities.versions() == {"pool-small": frozenset({"v1", "v2"})}
    with_adapters = [LoadedModel("v2", "warm", adapters_max=1)]
    capacities.update([capacity_record("r2", models=with_adapters)])
    capacities.update([capacity_record("of an earlier release")])
    assert capacities.versions() == {"pool-small": frozenset({"v1", "v2", "v2+", ""})}


def test_a_pool_whose_replicas_list_no_versions_is_not_limited() -> None:
    capacities = PoolCapacities(ManualClock())
    capacities.update([capacity_record("of an earlier release")])
    assert capacities.versions() == {}
