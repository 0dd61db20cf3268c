"""Sends hostile bodies to an engine, and measures what another tenant's calls notice of them."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import item_timeout_answer
from tests.e2e.remote_engine import RemoteEngine

Call = tuple[str, bytes]
"""An endpoint and a body."""

_PAUSE_S = 0.005
BODY_TIMEOUT_S = 20.0
"""Seconds after which a body that generates for long is cancelled."""


@dataclass
class HostileRun:
    """What one hostile body did."""

    answer: EngineAnswer
    worst_call_s: float  # of the other tenant


@dataclass
class HostileRuns:
    """What all hostile bodies did."""

    by_name: dict[str, HostileRun] = field(default_factory=dict)
    grown_bytes: int = 0

    def slower_than(self, limit_s: float) -> dict[str, float]:
        """Return the names of bodies beside which a call took longer, and how long it took."""
        return {
            name: round(run.worst_call_s, 3)
            for name, run in self.by_name.items()
            if run.worst_call_s > limit_s
        }


async def run_beside(engine: RemoteEngine, body: Call, other: Call, timeout_s: float) -> HostileRun:
    """Send one hostile body while another tenant calls all the time, and cancel it after a time."""
    worst_s, has_ended = 0.0, asyncio.Event()

    async def call_repeatedly() -> None:
        nonlocal worst_s
        while not has_ended.is_set():
            began_s = time.monotonic()
            answer = await engine.serve(*other, None)
            assert answer.status_code == 200, answer.body
            worst_s = max(worst_s, time.monotonic() - began_s)
            await asyncio.sleep(_PAUSE_S)

    calls = asyncio.create_task(call_repeatedly())
    try:
        answer = await asyncio.wait_for(engine.serve(*body, None), timeout_s)
    except TimeoutError:
        answer = item_timeout_answer(timeout_s)
    finally:
        has_ended.set()
        await calls
    return HostileRun(answer, worst_s)


async def run_all_beside(
    engine: RemoteEngine,
    bodies: Mapping[str, Call],
    other: Call,
    timeout_s: float = BODY_TIMEOUT_S,
) -> HostileRuns:
    """Send hostile bodies one after the other; memory is compared after a first ordinary call."""
    runs = HostileRuns()
    for _ in range(3):
        assert (await engine.serve(*other, None)).status_code == 200
    before = engine.memory_bytes()
    for name, body in bodies.items():
        runs.by_name[name] = await run_beside(engine, body, other, timeout_s)
    runs.grown_bytes = engine.memory_bytes() - before
    return runs
