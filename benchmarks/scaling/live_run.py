"""One turn of a trace on a running stack: calls, a job, samples of its replicas, and an autoscaler.

The client of a call that is refused with 429 or 503 tries again, after `Retry-After` or 1 s, for as
long as `CALL_S_MAX`; its time to the first token counts from the first try.
"""

import asyncio
import itertools
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from openai import APIConnectionError
from openai.types import Batch

from autoscaler.actuators.actuator import ActuatorError, KindCount, PoolOrder
from autoscaler.actuators.embedded import EmbeddedActuator
from benchmarks.data.input_files import CHAT
from benchmarks.runs import VoidRunError
from benchmarks.scaling.keda_emulation import KedaSettings, KedaState, next_state
from benchmarks.scaling.trace import Trace
from benchmarks.stacks.stack import RunningStack
from benchmarks.stacks.stack_jobs import JobsClient, is_terminal
from cli.load.load_client import LoadTarget, TimedCall
from core.runtime.open_files import request_open_file_limit

MODEL: Final = "simulated"
POOL: Final = "simulated-simulated"
GPU_TYPE: Final = "sim"
CALL_S_MAX: Final = 240.0
TAIL_S_MAX: Final = 900.0
"""How long the way to zero may take after the last work."""

_TOKENS: Final = 2
_SAMPLE_S: Final = 0.5
_KEDA_S: Final = 1.0
_KEDA_EPOCH: Final = 1_000_000
_JOB_POLL_S: Final = 1.0
_OPEN_FILES: Final = 8_192
_RETRY_S_MAX: Final = 5.0


@dataclass(slots=True)
class LiveTurn:
    """What happened so far; times are seconds after the start of the turn."""

    first_waits_s: list[float] = field(default_factory=list)
    event_counts: Counter[int] = field(default_factory=Counter)
    lost_calls: int = 0
    open_calls: int = 0
    items_left: int = 0
    batch: Batch | None = None
    job_began_s: float = 0.0
    job_ended_s: float = 0.0
    work_ended_s: float = 0.0
    zero_s: float | None = None  # after the end of the work
    samples: list[tuple[float, int, int]] = field(default_factory=list)  # time, processes, ordered

    @property
    def replica_s(self) -> float:
        """Seconds of all replica processes, from start to end, between two samples each."""
        pairs = zip(self.samples, self.samples[1:], strict=False)
        return sum((after[0] - before[0]) * before[1] for before, after in pairs)

    @property
    def peak(self) -> int:
        """The most processes at once."""
        return max((count for _, count, _ in self.samples), default=0)

    @property
    def flips(self) -> int:
        """How often the ordered number turned from rising to falling or back."""
        return flip_count([ordered for _, _, ordered in self.samples])

    @property
    def odd_streams(self) -> int:
        """Streams with more or fewer events than most have: a token was lost or came twice."""
        most = max(self.event_counts.values(), default=0)
        return sum(self.event_counts.values()) - most


def flip_count(counts: list[int]) -> int:
    """Return how often a series turns from rising to falling, or back."""
    steps = [b - a for a, b in itertools.pairwise(counts) if b != a]
    return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))


async def run_turn(
    stack: RunningStack, data: Path, trace: Trace, file: Path, keda: KedaSettings | None
) -> LiveTurn:
    """Run the trace until the pool is at zero again. With `keda` it decides, else the role does.

    Raises VoidRunError.
    """
    request_open_file_limit(_OPEN_FILES)
    turn, started_s = LiveTurn(), time.monotonic()
    actuator = EmbeddedActuator(str(data / "scaling.sock"))
    sampling = asyncio.create_task(_sample(turn, stack, actuator, started_s))
    deciding = asyncio.create_task(_decide(turn, keda, actuator)) if keda else None
    try:
        async with asyncio.timeout(trace.length_s + TAIL_S_MAX), asyncio.TaskGroup() as group:
            group.create_task(_send_calls(turn, stack, trace, started_s))
            group.create_task(_run_job(turn, stack, trace, file, started_s))
        turn.work_ended_s = max(turn.work_ended_s, turn.job_ended_s)
        await _wait_for_zero(turn, started_s)
    except TimeoutError:
        raise VoidRunError("the work of the trace did not end") from None
    finally:
        for task in (sampling, deciding):
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, (sampling, deciding)), return_exceptions=True)
    return turn


async def _wait_for_zero(turn: LiveTurn, started_s: float) -> None:
    while time.monotonic() - started_s < turn.work_ended_s + TAIL_S_MAX:
        at_s, processes, _ = turn.samples[-1]
        if processes == 0 and at_s > turn.work_ended_s:
            turn.zero_s = at_s - turn.work_ended_s
            return
        await asyncio.sleep(_SAMPLE_S)


async def _sample(
    turn: LiveTurn, stack: RunningStack, actuator: EmbeddedActuator, started_s: float
) -> None:
    """Count the replica processes, and what was ordered, twice a second."""
    ordered = 0
    while True:
        roles = await asyncio.to_thread(stack.roles)
        count = sum(name.rstrip("+") == "gpu-consumer" for name in roles)
        try:
            observed = await actuator.observe(POOL)
            ordered = sum(kind.replicas for kind in observed.kinds)
        except ActuatorError:
            pass  # the last one counts
        turn.samples.append((time.monotonic() - started_s, count, ordered))
        await asyncio.sleep(_SAMPLE_S)


async def _decide(turn: LiveTurn, settings: KedaSettings, actuator: EmbeddedActuator) -> None:
    """Let the emulation order replicas by the calls and items without an answer."""
    state, sent, sequence = KedaState(), 0, 0
    while True:
        lag: tuple[float, ...] = float(turn.open_calls), float(turn.items_left)
        lags = lag if len(settings.thresholds) > 1 else (sum(lag),)
        state = next_state(settings, state, lags, time.monotonic())
        if state.replicas != sent:
            sequence += 1
            kinds = (KindCount(gpu_type=GPU_TYPE, replicas=state.replicas),)
            order = PoolOrder(pool=POOL, epoch=_KEDA_EPOCH, sequence=sequence, kinds=kinds)
            try:
                await actuator.apply(order)
                sent = state.replicas
            except ActuatorError:
                pass  # sent again
        await asyncio.sleep(_KEDA_S)


async def _send_calls(turn: LiveTurn, stack: RunningStack, trace: Trace, started_s: float) -> None:
    """Start each call at its time, whether or not earlier ones have ended."""
    message = {"role": "user", "content": "hello"}
    body = {"model": MODEL, "messages": [message], "max_tokens": _TOKENS, "stream": True}
    server = stack.server
    target = LoadTarget(server.url + CHAT, server.key, msgspec.json.encode(body))
    async with asyncio.TaskGroup() as group:
        for at_s in trace.call_times():
            await asyncio.sleep(max(0.0, started_s + at_s - time.monotonic()))
            turn.open_calls += 1
            group.create_task(_call(turn, target))
    turn.work_ended_s = time.monotonic() - started_s


async def _call(turn: LiveTurn, target: LoadTarget) -> None:
    began_s = time.perf_counter()
    try:
        while time.perf_counter() - began_s < CALL_S_MAX:
            call = await _try_once(target)
            if not call.error and call.is_done:
                turn.first_waits_s.append(call.first_s - began_s)
                turn.event_counts[call.event_count] += 1
                return
            await asyncio.sleep(_retry_s(call))
        turn.lost_calls += 1
    finally:
        turn.open_calls -= 1


async def _try_once(target: LoadTarget) -> TimedCall:
    try:
        async with asyncio.timeout(CALL_S_MAX):
            connection = await target.connect()
            try:
                return await connection.send()
            finally:
                connection.close()
    except (OSError, TimeoutError):
        return TimedCall(0.0, error="no connection")


def _retry_s(call: TimedCall) -> float:
    try:
        return min(_RETRY_S_MAX, max(0.2, float(call.retry_after)))
    except ValueError:
        return 1.0


async def _run_job(
    turn: LiveTurn, stack: RunningStack, trace: Trace, file: Path, started_s: float
) -> None:
    """Upload and create the job at its time, and wait until it has ended."""
    await asyncio.sleep(max(0.0, started_s + trace.job_at_s - time.monotonic()))
    turn.items_left = trace.job_items
    turn.job_began_s = time.monotonic() - started_s
    left_s = trace.job_deadline_s - turn.job_began_s

    def begin() -> tuple[JobsClient, Batch]:
        client = JobsClient(stack.server)
        batch = client.start(client.upload(file)[0])
        client.set_deadline(batch, int(time.time() + left_s))
        return client, batch

    client, batch = await asyncio.to_thread(begin)
    while not is_terminal(batch):
        await asyncio.sleep(_JOB_POLL_S)
        with suppress(APIConnectionError):  # the api restarts
            batch = await asyncio.to_thread(client.read, batch)
        if batch.request_counts is not None:
            counts = batch.request_counts
            turn.items_left = max(0, trace.job_items - counts.completed - counts.failed)
    turn.items_left = 0
    turn.batch = batch
    turn.job_ended_s = time.monotonic() - started_s
