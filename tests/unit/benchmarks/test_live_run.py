"""Goal: a turn ends at zero after its work, and a call that is refused is tried again and kept."""

import asyncio
from pathlib import Path
from typing import cast

import pytest
from openai.types import Batch
from openai.types.batch_request_counts import BatchRequestCounts

from autoscaler.actuators.actuator import PoolOrder
from autoscaler.actuators.socket_messages import PoolAnswer
from benchmarks.scaling import live_run
from benchmarks.scaling.keda_emulation import KedaSettings
from benchmarks.scaling.trace import Trace
from benchmarks.stacks.load_runs import Server
from benchmarks.stacks.stack import RunningStack
from tests.support.scaling_sockets import carried_out, scaling_socket
from tests.support.scripted_http import STREAM_HEAD, chunk

ITEMS, REFUSED = 40, 3
TRACE = Trace(
    rates=((0.0, 20.0), (1.0, 20.0)),
    job_at_s=0.2,
    job_items=ITEMS,
    job_deadline_s=60.0,
    length_s=2.0,
)
KEDA = KedaSettings(
    thresholds=(10.0,),
    replicas_max=12,
    partitions=12,
    polling_s=0.1,
    cooldown_s=0.3,
    sync_s=0.1,
    down_window_s=0.2,
)
REFUSAL = b"HTTP/1.1 503 Busy\r\nretry-after: 0.2\r\ncontent-length: 0\r\n\r\n"
STREAM = (
    STREAM_HEAD
    + chunk(b'data: {"a":1}\n\n')
    + chunk(b'data: {"a":2}\n\n')
    + chunk(b"data: [DONE]\n\n")
    + chunk(b"")
)


class OrderedPool:
    """A pool that has at once what is ordered."""

    def __init__(self) -> None:
        self.orders = [PoolOrder(pool=live_run.POOL, epoch=0, sequence=0, kinds=())]

    def apply(self, order: PoolOrder) -> PoolAnswer:
        self.orders.append(order)
        return self.observe(order.pool)

    def observe(self, pool: str) -> PoolAnswer:
        last = self.orders[-1]
        assert pool == last.pool
        return PoolAnswer(kinds=last.kinds, epoch=last.epoch)


class FakeStack:
    """A stack with as many replica processes as were ordered."""

    def __init__(self, url: str, pool: OrderedPool) -> None:
        self.server, self._pool = Server(url), pool

    def roles(self) -> dict[str, int]:
        count = self._pool.orders[-1].replicas
        return {"api": 1} | {"gpu-consumer" + "+" * n: n for n in range(count)}


class FakeJobs:
    """A job that completes ten items at each reading."""

    def __init__(self, server: Server) -> None:
        self.completed = 0

    def upload(self, path: Path) -> tuple[str, float]:
        return "file", 0.0

    def start(self, file_id: str) -> Batch:
        return self._batch()

    def set_deadline(self, batch: Batch, expires_at_s: int) -> None:
        self.expires_at_s = expires_at_s

    def read(self, batch: Batch) -> Batch:
        self.completed += 10
        return self._batch()

    def _batch(self) -> Batch:
        counts = BatchRequestCounts(completed=self.completed, failed=0, total=ITEMS)
        status = "completed" if self.completed == ITEMS else "in_progress"
        return Batch.model_construct(id="batch", status=status, request_counts=counts)


async def test_a_turn_follows_the_trace_to_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        is_refused = calls <= REFUSED
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REFUSAL if is_refused else STREAM)
        await writer.drain()
        writer.close()

    monkeypatch.setattr(live_run, "JobsClient", FakeJobs)
    for name in ("_SAMPLE_S", "_KEDA_S", "_JOB_POLL_S"):
        monkeypatch.setattr(live_run, name, 0.05)
    pool = OrderedPool()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stack = cast("RunningStack", FakeStack(url, pool))
        with (
            scaling_socket(tmp_path / "scaling.sock", pool) as served,
            carried_out(served.answer_waiting),
        ):
            turn = await live_run.run_turn(stack, tmp_path, TRACE, tmp_path / "file", KEDA)

    count = len(TRACE.call_times())
    assert (len(turn.first_waits_s), turn.lost_calls, calls) == (count, 0, count + REFUSED)
    assert sum(wait_s >= 0.2 for wait_s in turn.first_waits_s) >= REFUSED
    assert (turn.event_counts, turn.odd_streams) == ({2: count}, 0)
    assert turn.batch is not None
    assert turn.batch.status == "completed"
    assert turn.zero_s is not None
    assert turn.zero_s > 0
    assert turn.peak >= 1
    assert turn.replica_s > 0
    assert [order.sequence for order in pool.orders] == list(range(len(pool.orders)))
    assert pool.orders[-1].replicas == 0
