"""Goal: faults affect the configured bodies and no others."""

import asyncio

import msgspec
import pytest

from core.clock import SystemClock
from core.errors import EngineOutOfMemoryError, SettingsError
from gpu_consumers.engines.engine import Engine, EngineAnswer, SlotCounts
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.error_answers import error_code_of
from gpu_consumers.engines.open_engine import open_engine
from gpu_consumers.engines.settings import EngineSettings, SimulatedFault
from gpu_consumers.engines.simulated.fault_injection_engine import FaultInjectionEngine
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine

CHAT = "/v1/chat/completions"
GOOD = b'{"messages":[{"role":"user","content":"Hello."}]}'


def drill(
    *faults: SimulatedFault, latency_ms: float = 0, timeout_s: float = 5
) -> FaultInjectionEngine:
    inner = SimulatedEngine("m", latency_ms=0, slots=EngineSlots(4), clock=SystemClock())
    return FaultInjectionEngine(
        inner, faults, EngineSlots(4, 1), latency_ms=latency_ms, item_timeout_s=timeout_s
    )


def told(kind: str, **more: float) -> SimulatedFault:
    return SimulatedFault.model_validate({"contains": kind, "fault": kind, **more})


def body(text: str) -> bytes:
    return GOOD.replace(b"Hello", text.encode())


async def answers_of(engine: Engine, *bodies: bytes) -> list[EngineAnswer]:
    answers: dict[int, EngineAnswer] = {}
    await engine.execute(CHAT, bodies, answers.__setitem__)
    return [answers[index] for index in range(len(bodies))]


async def run(engine: Engine, *bodies: bytes) -> list[int]:
    return [answer.status_code for answer in await answers_of(engine, *bodies)]


async def test_bodies_without_fault_are_answered() -> None:
    engine = drill(told("error500"))
    plain = SimulatedEngine("m", latency_ms=0, slots=EngineSlots(4), clock=SystemClock())
    (injected,), (simulated,) = await answers_of(engine, GOOD), await answers_of(plain, GOOD)
    said, expected = (msgspec.json.decode(answer.body) for answer in (injected, simulated))
    assert said | {"created": 0} == expected | {"created": 0}
    assert await run(engine, GOOD, body("error500"), GOOD) == [200, 500, 200]


async def test_hang_times_out_and_releases_its_slot() -> None:
    engine = drill(told("hang"), timeout_s=0.05)
    assert await run(engine, *[body("hang")] * 6, GOOD) == [504] * 6 + [200]
    assert engine.slots == SlotCounts(0, 0, 0)


async def test_hang_can_be_cancelled() -> None:
    engine = drill(told("hang"), timeout_s=600)
    running = asyncio.create_task(run(engine, body("hang")))
    while not engine.slots.bulk:  # noqa: ASYNC110  its first turns
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert engine.slots == SlotCounts(0, 0, 0)


async def test_out_of_memory_fails_the_batch_but_only_one_call() -> None:
    engine = drill(told("oom"))
    with pytest.raises(EngineOutOfMemoryError):
        await run(engine, GOOD, body("oom"))
    assert (await engine.serve(CHAT, body("oom"), None)).status_code == 500
    assert await run(engine, GOOD) == [200]
    assert engine.slots == SlotCounts(0, 0, 0)


async def test_nan_fault_answers_null_log_probabilities() -> None:
    engine = drill(told("nan"))
    (answer,) = await answers_of(engine, body("nan"))
    said = msgspec.json.decode(answer.body)
    assert answer.status_code == 200
    assert said["choices"][0]["logprobs"]["content"][0]["logprob"] is None
    counts = (answer.input_tokens, answer.output_tokens)
    assert counts == (said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"])
    events: list[bytes] = []
    streamed = body("nan").replace(b"{", b'{"stream":true,', 1)
    assert (await engine.serve(CHAT, streamed, events.append)).body == b""
    assert events


async def test_overflow_fault_is_refused_like_vllm() -> None:
    (answer,) = await answers_of(drill(told("overflow")), body("overflow"))
    assert answer.status_code == 400
    assert error_code_of(answer.body) == "context_length_exceeded"


async def test_slow_fault_delays_the_answer() -> None:
    engine = drill(told("slow", slow_s=0.05))
    began_s = asyncio.get_running_loop().time()
    assert await run(engine, body("slow")) == [200]
    assert asyncio.get_running_loop().time() - began_s >= 0.045


def settings(faults: str) -> EngineSettings:
    env = {"KIND": "simulated", "MODEL_NAME": "m", "SIMULATED_FAULTS": faults}
    return EngineSettings.from_env({f"MILLRACE_ENGINE_{name}": env[name] for name in env})


def test_faults_are_configured_by_a_setting() -> None:
    faults = '[{"contains":"a","fault":"crash"},{"contains":"b","fault":"slow","slow_s":2}]'
    assert isinstance(open_engine(settings(faults)), FaultInjectionEngine)
    assert isinstance(open_engine(settings("[]")), SimulatedEngine)


@pytest.mark.parametrize(
    "faults",
    [
        "crash",
        '{"contains":"a","fault":"crash"}',
        '[{"contains":"","fault":"crash"}]',
        '[{"contains":"a","fault":"explode"}]',
        '[{"contains":"a","fault":"slow"}]',
        '[{"contains":"a","fault":"crash","slow_s":1}]',
        '[{"contains":"a","fault":"crash","often":1}]',
    ],
)
def test_invalid_fault_is_rejected(faults: str) -> None:
    with pytest.raises(SettingsError, match="SIMULATED_FAULTS"):
        settings(faults)
