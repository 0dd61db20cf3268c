"""Goal: simulated answers say so, are repeatable, and respect the concurrency."""

import asyncio
import math

import msgspec
import pytest

from gpu_consumers.engines.engine import EngineAnswer, SlotCounts, UsageMeter
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.error_answers import error_code_of
from gpu_consumers.engines.simulated.generated_answers import chat_answer, unit_vector
from gpu_consumers.engines.simulated.reply_plans import ChatBody
from gpu_consumers.engines.simulated.shown_model import ShownModel
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine
from tests.support.clock import ManualClock

SHOWN = ShownModel("m")

CHAT = "/v1/chat/completions"
BODY = b'{"messages":[{"role":"user","content":"Hello."}],"max_tokens":32}'

CLOCK = ManualClock(wall_time_s=1_700_000_000.0)


STREAMED = BODY.replace(b"}]", b'}],"stream":true')


def engine(latency_ms: float = 0, concurrency: int = 4, *, token_ms: float = 0) -> SimulatedEngine:
    slots = EngineSlots(concurrency)
    return SimulatedEngine("m", latency_ms=latency_ms, token_ms=token_ms, slots=slots, clock=CLOCK)


async def run(one: SimulatedEngine, bodies: list[bytes]) -> dict[int, EngineAnswer]:
    answers: dict[int, EngineAnswer] = {}
    await one.execute(CHAT, bodies, answers.__setitem__)
    return answers


async def test_answers_state_that_they_are_simulated() -> None:
    content = msgspec.json.decode((await run(engine(), [BODY]))[0].body)
    assert content["model"] == "simulated/m"
    assert content["choices"][0]["message"]["content"].startswith("Simulated ")
    assert content["created"] == 1_700_000_000


async def test_adapter_is_a_part_of_the_model_that_answers_name() -> None:
    slots = EngineSlots(4)
    one = SimulatedEngine("m", latency_ms=0, slots=slots, clock=CLOCK, has_adapters=True)
    body = BODY.replace(b"{", b'{"model":"alias",', 1)
    found: dict[int, EngineAnswer] = {}
    await one.execute(CHAT, [BODY, body], found.__setitem__, "a1b2")
    events: list[bytes] = []
    await one.serve(CHAT, body.replace(b"}]", b'}],"stream":true'), events.append, None, "a1b2")
    answers = [found[0].body, found[1].body, (await one.serve(CHAT, body, None)).body, events[0]]
    assert [msgspec.json.decode(answer)["model"] for answer in answers] == [
        "simulated/m+a1b2",
        "simulated/alias+a1b2",
        "simulated/alias",
        "simulated/alias+a1b2",
    ]


async def test_adapter_is_refused_without_adapters() -> None:
    found: dict[int, EngineAnswer] = {}
    await engine().execute(CHAT, [BODY] * 2, found.__setitem__, "a1b2")
    answers = [found[0], found[1], await engine().serve(CHAT, BODY, None, None, "a1b2")]
    assert [error_code_of(answer.body) for answer in answers] == ["adapter_unknown"] * 3


async def test_equal_bodies_get_equal_answers() -> None:
    first, second = await run(engine(), [BODY]), await run(engine(latency_ms=1), [BODY])
    assert first == second
    assert first[0] != (await run(engine(), [BODY.replace(b"Hello", b"Ciao!")]))[0]


@pytest.mark.parametrize("field", [b'"model":"\xff"', b'"user":"x","messages":[{"role":"\xff"}]'])
def test_a_chat_that_is_not_utf_8_is_refused(field: bytes) -> None:
    answer = chat_answer(b'{"messages":[{"role":"user","content":"x"}],' + field + b"}", SHOWN, 0)
    assert answer.status_code == 400
    assert b"not UTF-8" in answer.body


@pytest.mark.parametrize(
    ("field", "tokens", "finish"),
    [
        (b'"max_tokens":100', 100, "length"),
        (b'"max_completion_tokens":7', 7, "length"),
        (b'"max_tokens":9,"max_completion_tokens":12', 12, "length"),
        (b'"seed":1', 64, "stop"),
        (b'"n":1,"stop":[],"stream":false', 64, "stop"),
        (b'"stop":"no such text"', 64, "stop"),
        (b'"max_tokens":1000000', 4096, "stop"),
    ],
)
def test_reply_has_the_requested_length(
    field: bytes, tokens: int, finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],' + field + b"}"
    answer = chat_answer(body, SHOWN, 0)
    with monkeypatch.context() as every_chat:
        every_chat.setattr(ChatBody, "is_plain", False)
        assert chat_answer(body, SHOWN, 0) == answer
    choice = msgspec.json.decode(answer.body)["choices"][0]
    assert answer.output_tokens == tokens
    assert choice["finish_reason"] == finish
    assert math.isclose(len(choice["message"]["content"]), 4 * tokens, abs_tol=20)
    assert answer.input_tokens == len(body) // 4


@pytest.mark.parametrize("n", [1, 128])
async def test_answer_size_is_limited(n: int) -> None:
    body = {"prompt": ["a"] * 2048, "n": n, "max_tokens": 4096 // n}
    answers: dict[int, EngineAnswer] = {}
    await engine().execute("/v1/completions", [msgspec.json.encode(body)], answers.__setitem__)
    assert answers[0].status_code == 400
    assert msgspec.json.decode(answers[0].body)["error"]["param"] == "prompt"


def test_vector_depends_only_on_its_input() -> None:
    assert unit_vector("a", 8) == unit_vector("a", 8) != unit_vector("b", 8)
    assert math.hypot(*unit_vector([1, 2], 100)) == pytest.approx(1, abs=1e-6)


async def test_items_take_the_latency_in_rounds() -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    await run(engine(latency_ms=10, concurrency=4), [BODY] * 10)
    assert loop.time() - start_s >= 0.029  # three rounds


async def test_cancel_releases_the_slots() -> None:
    slow = engine(latency_ms=3_600_000, concurrency=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run(slow, [BODY] * 3), 0.01)
    assert slow.slots == SlotCounts(bulk=0, online=0, waiting=0)


async def test_streams_advance_together() -> None:
    loop = asyncio.get_running_loop()
    paced = engine(concurrency=500, token_ms=10)
    body = STREAMED.replace(b"32", b"10")
    times: list[float] = []
    start_s = loop.time()
    answers = await asyncio.gather(
        *(paced.serve(CHAT, body, lambda _: times.append(loop.time())) for _ in range(500))
    )
    assert {(answer.status_code, answer.output_tokens) for answer in answers} == {(200, 10)}
    assert len(times) == 500 * 11  # the roles come with the first tokens
    assert times[500] - start_s < 5
    assert times[-1] - start_s >= 0.08  # nine steps, the first perhaps short


async def test_aborted_stream_is_charged_for_emitted_tokens() -> None:
    paced = engine(concurrency=2, token_ms=1)
    meter, pieces, third = UsageMeter(), list[bytes](), asyncio.Event()

    def emit(piece: bytes) -> None:
        pieces.append(piece)
        if len(pieces) == 4:  # the role and three tokens
            third.set()

    call = asyncio.create_task(paced.serve(CHAT, STREAMED, emit, meter))
    await third.wait()
    call.cancel()
    await asyncio.wait([call])
    spent = meter.with_usage(EngineAnswer(0, b""))
    assert (spent.input_tokens > 0, spent.output_tokens) == (True, len(pieces) - 1)


async def test_call_starts_when_it_has_a_slot() -> None:
    full = engine(latency_ms=1, concurrency=1)
    events = list[str]()

    async def run(name: str) -> None:
        await full.serve(CHAT, BODY, None, UsageMeter(lambda: events.append(f"{name} began")))
        events.append(f"{name} ended")

    await asyncio.gather(run("first"), run("second"))
    assert events == ["first began", "first ended", "second began", "second ended"]


async def test_failing_listener_fails_only_its_stream() -> None:
    one = engine()

    def emit(_: bytes) -> None:
        raise ZeroDivisionError

    good, bad = await asyncio.gather(
        one.serve(CHAT, STREAMED, lambda _: None),
        one.serve(CHAT, STREAMED, emit),
        return_exceptions=True,
    )
    assert isinstance(good, EngineAnswer)
    assert isinstance(bad, ZeroDivisionError)
    assert one.slots == SlotCounts(0, 0, 0)


async def test_start_takes_the_load_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    loading = SimulatedEngine("m", latency_ms=0, load_s=20, slots=EngineSlots(4), clock=CLOCK)
    await loading.start()
    await engine().start()
    assert slept_s == [20]
