"""Goal: items and calls run with the adapter that their job names, beside those of the base."""

from collections.abc import Sequence

import msgspec

from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, OnAnswer, UsageMeter
from gpu_consumers.flow_control.warm_model import WarmModel
from tests.unit.gpu_consumers.fakes import FaultyEngine, GatedEngine
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica, batch_of, call_chunk
from topics.records.records import Batch, Chunk

BASE, ADAPTER = "b" * 64, "a" * 64
HERE = WarmModel(version=BASE, adapters_max=1)


class RecordingEngine(FaultyEngine):
    """Records the adapter of each body."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters: dict[bytes, str] = {}

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        self.adapters |= dict.fromkeys(bodies, adapter)
        await super().execute(endpoint, bodies, finished, adapter)


class RecordingOnlineEngine(GatedEngine):
    """Records the adapter of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters: list[str] = []

    async def serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter,
        adapter: str = "",
    ) -> EngineAnswer:
        self.adapters.append(adapter)
        return await super().serve(endpoint, body, emit, meter, adapter)


def of_adapter(chunk: Chunk) -> Chunk:
    job = msgspec.structs.replace(chunk.job, model_version=ADAPTER, base_version=BASE)
    return msgspec.structs.replace(chunk, job=job)


def of_base(chunk: Chunk) -> Chunk:
    job = msgspec.structs.replace(chunk.job, model_version=BASE)
    return msgspec.structs.replace(chunk, job=job)


async def test_each_job_of_a_batch_runs_with_its_adapter() -> None:
    engine = RecordingEngine()
    replica = BulkReplica(engine=engine, served=HERE)
    parts = [of_adapter(batch_of(b"1", b"2").parts[0])]
    parts.append(of_base(batch_of(b"3", job_number=2).parts[0]))
    batch: Batch = msgspec.structs.replace(batch_of(b""), parts=parts)
    replica.start_batch(batch)
    await replica.wait_ended()
    assert engine.adapters == {b"1": ADAPTER, b"2": ADAPTER, b"3": ""}


async def test_call_runs_with_its_adapter() -> None:
    replica = OnlineReplica(served=HERE)
    engine = RecordingOnlineEngine()
    replica.execution.server._engine = engine  # type: ignore[assignment]
    engine.gate.set()
    await replica.complete(of_adapter(call_chunk(1)), of_base(call_chunk(2)))
    assert engine.adapters == [ADAPTER, ""]
