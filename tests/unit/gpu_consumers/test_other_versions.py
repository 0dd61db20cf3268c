"""Goal: work of another version is requeued without a trace, and answers name their engine."""

from dataclasses import replace as replace_model
from uuid import UUID

import pytest
from msgspec.structs import replace

from gpu_consumers.bulk import other_versions
from gpu_consumers.engines.error_answers import error_code_of
from gpu_consumers.flow_control.warm_model import ANY_VERSION, WarmModel
from gpu_consumers.online import call_execution
from gpu_consumers.online.call_execution import OTHER_VERSION_MAX
from tests.unit.gpu_consumers.fakes import MemoryAttemptLog
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica, batch_of, call_chunk
from topics.records.attempts import AttemptUnit
from topics.records.records import Batch, LoadedModel

HERE = WarmModel(version="1", engine="e1")
OTHER = WarmModel(version="2", engine="e2")
"""Jobs of these tests are of version 1."""


def adapter_batch(base_version: str) -> Batch:
    """Return a batch of one item of an adapter."""
    batch = batch_of(b"1")
    (part,) = batch.parts
    job = replace(part.job, model_version="of the adapter", base_version=base_version)
    return Batch(batch.batch_id, "b", [replace(part, job=job)])


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_versions, "OTHER_VERSION_WAIT_S", 0.0)
    monkeypatch.setattr(call_execution, "_OTHER_VERSION_WAIT_S", 0.0)


async def test_a_batch_of_another_version_is_requeued_uncharged() -> None:
    replica = BulkReplica(served=OTHER)
    batch = batch_of(b"1", b"2")
    charged = Batch(batch.batch_id, "b", [replace(batch.parts[0], charged=10.0)])
    replica.start_batch(charged)
    assert await replica.wait_ended() is None

    (chunk,) = replica.log.requeued
    assert [(item.index, item.attempt) for item in chunk.items] == [(0, 1), (1, 1)]
    assert not chunk.redelivered
    assert (replica.engine.executed, replica.log.outcomes) == ([], [])
    assert (replica.consumer.offsets, replica.capacity.in_flight) == ([0], 0)
    assert (replica.attempts.recorded, replica.attribution.has_suspects()) == ([], False)
    replica.capacity.usage.publish()
    (report,) = replica.log.usage
    assert report.tenants[0].correction == -10.0  # where it runs, it is charged again


async def test_a_batch_runs_where_its_version_is() -> None:
    replica = BulkReplica(served=HERE)
    replica.start_batch(batch_of(b"1"))
    await replica.wait_ended()
    assert ([*replica.log.engines], replica.log.requeued) == (["e1"], [])


async def test_an_adapter_runs_where_its_base_model_is() -> None:
    replica = BulkReplica(served=replace_model(OTHER, adapters_max=1))
    replica.start_batch(adapter_batch("2"))
    await replica.wait_ended()
    assert len(replica.log.outcomes) == 1


@pytest.mark.parametrize("served", [OTHER, ANY_VERSION])
async def test_an_adapter_is_requeued_where_none_is_taken(served: WarmModel) -> None:
    replica = BulkReplica(served=served)
    replica.start_batch(adapter_batch("2"))
    await replica.wait_ended()
    assert (replica.log.requeued_indexes, replica.log.outcomes) == ([0], [])
    assert replica.engine.executed == []


async def test_a_redelivered_batch_of_another_version_is_requeued_without_quarantine() -> None:
    replica = BulkReplica(served=OTHER)
    replica.start_batch(batch_of(b"1", b"2"), is_redelivered=True)
    assert await replica.wait_ended() is None
    assert replica.log.requeued_indexes == [0, 1]
    assert (replica.engine.executed, replica.consumer.offsets) == ([], [0])
    assert not any(attempt.is_running or attempt.units for attempt in replica.attempts.recorded)


async def test_only_what_the_last_owner_left_of_a_redelivered_batch_is_requeued() -> None:
    batch, attempts = batch_of(b"1", b"2", b"3"), MemoryAttemptLog()
    attempts.add(batch, AttemptUnit(2, 1, 0), is_running=False)
    replica = BulkReplica(attempts=attempts, served=OTHER)
    replica.start_batch(batch, is_redelivered=True)
    await replica.wait_ended()
    assert replica.log.requeued_indexes == [2]


async def test_a_completed_batch_of_another_version_is_not_requeued() -> None:
    batch, attempts = batch_of(b"1"), MemoryAttemptLog()
    attempts.add(batch, is_running=False)
    replica = BulkReplica(attempts=attempts, served=OTHER)
    replica.start_batch(batch, is_redelivered=True)
    await replica.wait_ended()
    assert (replica.log.requeued, replica.consumer.offsets) == ([], [0])


async def test_a_call_of_another_version_is_requeued_and_fails_at_last() -> None:
    replica = OnlineReplica(served=OTHER)
    for count in range(1, OTHER_VERSION_MAX + 1):
        await replica.complete(call_chunk())
        assert (len(replica.log.requeued), replica.log.ends) == (count, [])
    await replica.complete(call_chunk())
    (end,) = replica.log.ends
    assert (end.status_code, error_code_of(end.body)) == (503, "version_unavailable")
    assert (replica.engine.served, replica.log.bills, end.engine) == (0, [], "")
    assert replica.finished_count == OTHER_VERSION_MAX + 1


async def test_a_redelivered_call_of_another_version_needs_its_caller_first() -> None:
    """The caller has perhaps got pieces of it: then it must end, and not wait for a replica."""
    replica = OnlineReplica(served=OTHER)
    await replica.hold(call_chunk(), is_redelivered=True)
    assert (len(replica.log.permission_requests), replica.log.requeued) == (1, [])
    replica.receive_caller_record(permitted=[UUID(int=1)])
    await replica.wait_ended()
    (chunk,) = replica.log.requeued
    assert not chunk.redelivered  # nothing of it runs any more


async def test_a_call_of_another_version_whose_caller_left_is_dropped() -> None:
    replica = OnlineReplica(served=OTHER)
    replica.callers.gone = True
    await replica.complete(call_chunk())
    assert replica.log.requeued == []


async def test_the_end_of_a_call_names_its_engine() -> None:
    replica = OnlineReplica(served=HERE)
    await replica.complete(call_chunk(1), call_chunk(2, durable=True))
    assert {end.engine for end in replica.log.ends} == {"e1"}
    assert replica.log.engines == {"e1"}


async def test_grants_and_capacity_name_the_version_and_what_is_loaded() -> None:
    adapters = ["a1"]
    served = WarmModel(version="1", engine="e1", adapters_max=4, adapters=lambda: adapters)
    replica = BulkReplica(served=served)
    replica.capacity.publish_withdrawal()
    adapters = ["a1", "a2"]
    replica.capacity.publish_withdrawal()
    assert [(one.versions, one.adapters_max) for one in replica.log.grants] == [(["1"], 4)] * 2
    assert [one.models for one in replica.log.capacities] == [
        [LoadedModel("1", "warm", "e1", ["a1"], adapters_max=4)],
        [LoadedModel("1", "warm", "e1", ["a1", "a2"], adapters_max=4)],
    ]


async def test_a_replica_without_version_names_none() -> None:
    replica = BulkReplica()
    replica.capacity.publish_withdrawal()
    assert (replica.log.grants[0].versions, replica.log.capacities[0].models) == ([], [])
