"""Goal: what the consumer loop relies on holds for every engine, whatever runs the items.

A subclass gives an `engine` fixture: started, and slow enough that a cancel finds work running. One
of `CutsConformance` also gives `hasty`: an engine on which `LONG` takes longer than an item may.
"""

import asyncio
import base64
import math
import struct
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gpu_consumers.engines.engine import Engine, EngineAnswer, SlotCounts, UsageMeter

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MODEL = "model-under-test"


FREES_S_MAX = 20.0
"""A cancelled call holds its place no longer: less than its own 2,000 tokens take. How long it did
is recorded."""

IDLE = SlotCounts(bulk=0, online=0, waiting=0)

TALK = [{"role": "user", "content": "a red apple"}, {"role": "user", "content": "or a pear"}]


def chat_body(text: str = "Say something.", **fields: object) -> bytes:
    messages = [{"role": "user", "content": text}]
    return msgspec.json.encode({"model": MODEL, "messages": messages, "max_tokens": 8} | fields)


def completion_body(prompt: object = "One", **fields: object) -> bytes:
    return msgspec.json.encode({"model": MODEL, "prompt": prompt, "max_tokens": 8} | fields)


def embeddings_body(given: object, **fields: object) -> bytes:
    return msgspec.json.encode({"model": MODEL, "input": given} | fields)


async def run(engine: Engine, endpoint: str, bodies: Sequence[bytes]) -> list[EngineAnswer]:
    """Return one answer a body, in order; fail unless each was reported exactly once."""
    reported: defaultdict[int, list[EngineAnswer]] = defaultdict(list)
    await engine.execute(endpoint, bodies, lambda index, answer: reported[index].append(answer))
    assert {index: len(answers) for index, answers in reported.items()} == dict.fromkeys(
        range(len(bodies)), 1
    )
    return [reported[index][0] for index in range(len(bodies))]


def content_of(answer: EngineAnswer) -> dict[str, Any]:
    assert b"\n" not in answer.body  # a result file has one item a line
    content = msgspec.json.decode(answer.body)
    assert isinstance(content, dict)
    return content


def assert_error_envelope(answer: EngineAnswer, status_code: int) -> None:
    assert answer.status_code == status_code
    error = content_of(answer)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    assert (answer.input_tokens, answer.output_tokens) == (0, 0)


async def counts_of(engine: Engine) -> SlotCounts:
    """An engine in another process has counters that must be fetched."""
    fetch = getattr(engine, "fetch_slots", None)
    return engine.slots if fetch is None else await fetch()


async def assert_idle_within(engine: Engine, limit_s: float) -> float:
    """Return how long it took."""
    began_s = time.monotonic()
    while (counts := await counts_of(engine)) != IDLE:
        assert time.monotonic() < began_s + limit_s, counts
        await asyncio.sleep(0.005)
    return round(time.monotonic() - began_s, 3)


class Reported(list[int]):
    """The indexes of the items that an `execute` has reported."""

    def __init__(self) -> None:
        super().__init__()
        self.first = asyncio.Event()

    def __call__(self, index: int, _: EngineAnswer) -> None:
        self.append(index)
        self.first.set()


class AnyEngineConformance:
    """Holds whatever the model is for."""

    async def test_unknown_endpoint_is_an_answer(self, engine: Engine) -> None:
        (answer,) = await run(engine, "/v1/nothing", [b"{}"])
        assert_error_envelope(answer, 404)

    async def test_no_bodies_return_at_once(self, engine: Engine) -> None:
        assert await run(engine, CHAT, []) == []

    def test_concurrency_is_at_least_one(self, engine: Engine) -> None:
        assert engine.concurrency >= 1


class ChatConformance(AnyEngineConformance):
    """Holds for an engine whose model writes text."""

    async def test_each_item_gets_its_own_answer(self, engine: Engine) -> None:
        good, bad = chat_body(), chat_body(messages=None)
        bodies = [bad if index % 3 == 0 else good for index in range(40)]
        answers = await run(engine, CHAT, bodies)
        assert [answer.status_code for answer in answers] == [
            400 if body == bad else 200 for body in bodies
        ]

    async def test_concurrent_calls_do_not_mix(self, engine: Engine) -> None:
        calls = [
            run(engine, CHAT, [chat_body()] * 15),
            run(engine, COMPLETIONS, [msgspec.json.encode({"model": MODEL, "prompt": "One"})] * 15),
            run(engine, CHAT, [b"{"] * 15),
        ]
        chats, completions, errors = await asyncio.gather(*calls)
        assert {content_of(answer)["object"] for answer in chats} == {"chat.completion"}
        assert {content_of(answer)["object"] for answer in completions} == {"text_completion"}
        assert {answer.status_code for answer in errors} == {400}

    async def test_usage_matches_the_body(self, engine: Engine) -> None:
        (answer,) = await run(engine, CHAT, [chat_body(max_tokens=5)])
        content = content_of(answer)
        assert content["usage"]["prompt_tokens"] == answer.input_tokens > 0
        assert content["usage"]["completion_tokens"] == answer.output_tokens
        assert 1 <= answer.output_tokens <= 5
        assert content["choices"][0]["message"]["role"] == "assistant"
        assert MODEL in content["model"]

    async def test_model_of_a_body_chooses_nothing_and_is_shown(self, engine: Engine) -> None:
        (answer,) = await run(engine, CHAT, [chat_body(model="production")])
        assert answer.status_code == 200
        assert content_of(answer)["model"].removeprefix("simulated/") == "production"

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"\xff",
            b"{}",
            b'{"messages":"none"}',
            b'{"messages":[{"role":1}]}',
            b'{"messages":[]}',
            b'{"messages":' + b"[" * 100_000,
            chat_body(max_tokens="many"),
            chat_body(max_tokens=-1),
            chat_body(stream=True),
            chat_body(temperature=-3, max_tokens=-3),
        ],
        ids=lambda body: body[:24].decode(errors="replace"),
    )
    async def test_invalid_body_is_an_error_envelope(self, engine: Engine, body: bytes) -> None:
        (answer,) = await run(engine, CHAT, [body])
        assert_error_envelope(answer, 400)

    async def test_cancelled_call_reports_no_more_items(self, engine: Engine) -> None:
        reported = Reported()
        bodies = [chat_body(max_tokens=64)] * (4 * engine.concurrency)
        call = asyncio.create_task(engine.execute(CHAT, bodies, reported))
        await asyncio.wait_for(reported.first.wait(), 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        count = len(reported)
        assert count < len(bodies)
        # A full round of other work passes through the freed places.
        answers = await run(engine, CHAT, [chat_body()] * (2 * engine.concurrency))
        assert {answer.status_code for answer in answers} == {200}
        assert len(reported) == count


class EmbeddingsConformance(AnyEngineConformance):
    """Holds for an engine whose model makes vectors."""

    async def test_float_and_base64_are_equal_vectors(self, engine: Engine) -> None:
        texts = ["a red apple", "a green pear"]
        floats, packed = await run(
            engine,
            EMBEDDINGS,
            [embeddings_body(texts), embeddings_body(texts, encoding_format="base64")],
        )
        assert vectors_of(packed) == [pytest.approx(v, abs=1e-6) for v in vectors_of(floats)]
        assert len(vectors_of(floats)) == 2

    async def test_vectors_have_unit_length(self, engine: Engine) -> None:
        (answer,) = await run(engine, EMBEDDINGS, [embeddings_body("a red apple")])
        assert math.hypot(*vectors_of(answer)[0]) == pytest.approx(1, abs=0.01)
        assert answer.input_tokens == content_of(answer)["usage"]["prompt_tokens"] > 0
        assert answer.output_tokens == 0

    @pytest.mark.parametrize(
        ("given", "vectors"),
        [("text", 1), (["a", "b", "c"], 3), ([5, 6, 7], 1), ([[5], [6, 7]], 2)],
    )
    async def test_each_kind_of_input(self, engine: Engine, given: object, vectors: int) -> None:
        (answer,) = await run(engine, EMBEDDINGS, [embeddings_body(given)])
        data = content_of(answer)["data"]
        assert [one["index"] for one in data] == [*range(vectors)]

    @pytest.mark.parametrize(("talks", "vectors"), [(TALK, 1), ([TALK, TALK[:1]], 2)])
    async def test_messages_are_input(
        self, engine: Engine, talks: list[object], vectors: int
    ) -> None:
        body = msgspec.json.encode({"model": MODEL, "messages": talks})
        (answer,) = await run(engine, EMBEDDINGS, [body])
        data = vectors_of(answer)
        assert len(data) == vectors
        assert math.hypot(*data[0]) == pytest.approx(1, abs=0.01)
        assert answer.input_tokens > 0

    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"{}",
            b'{"messages":7}',
            b'{"messages":[{"content":"a"}]}',
            embeddings_body([]),
            embeddings_body({}),
            embeddings_body("a", encoding_format="x"),
        ],
        ids=lambda body: body[:48].decode(),
    )
    async def test_invalid_body_is_an_error_envelope(self, engine: Engine, body: bytes) -> None:
        (answer,) = await run(engine, EMBEDDINGS, [body])
        assert_error_envelope(answer, 400)


def vectors_of(answer: EngineAnswer) -> list[list[float]]:
    assert answer.status_code == 200
    return [_vector(one["embedding"]) for one in content_of(answer)["data"]]


def _vector(embedding: list[float] | str) -> list[float]:
    if isinstance(embedding, list):
        return embedding
    raw = base64.b64decode(embedding)
    return [*struct.unpack(f"<{len(raw) // 4}f", raw)]


LONG: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True}
"""Fields of a body that a model writes at for long."""

LONG_CALLS = [(CHAT, chat_body(**LONG)), (COMPLETIONS, completion_body(**LONG))]


async def await_work(engine: Engine) -> None:
    """Return when an engine in another process has the call itself, not only its request."""
    fetch = getattr(engine, "fetch_unfinished", None)
    began_s = time.monotonic()
    while fetch is not None and not await fetch():
        assert time.monotonic() < began_s + 30
        await asyncio.sleep(0.005)


class CutsConformance:
    """Holds for an engine whose model writes text."""

    @pytest.mark.parametrize(("endpoint", "body"), LONG_CALLS)
    async def test_cancelled_call_has_no_answer(
        self, engine: Engine, endpoint: str, body: bytes
    ) -> None:
        began = asyncio.Event()
        call = asyncio.create_task(engine.serve(endpoint, body, None, UsageMeter(began.set)))
        await asyncio.wait_for(began.wait(), 30)
        await await_work(engine)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await assert_idle_within(engine, FREES_S_MAX)

    async def test_cancelled_batch_ends_while_others_continue(self, engine: Engine) -> None:
        reported = Reported()
        body = chat_body(max_tokens=64, ignore_eos=True)
        leaves = asyncio.create_task(
            engine.execute(CHAT, [body] * (4 * engine.concurrency), reported)
        )
        stays = asyncio.create_task(
            engine.execute(CHAT, [body] * (60 * engine.concurrency), lambda *_: None)
        )
        await asyncio.wait_for(reported.first.wait(), 30)
        leaves.cancel()
        await asyncio.wait([leaves])
        assert leaves.cancelled()
        assert not stays.done()
        stays.cancel()
        await asyncio.wait([stays])
        assert stays.cancelled()
        await assert_idle_within(engine, FREES_S_MAX)

    @pytest.mark.parametrize(("endpoint", "body"), LONG_CALLS)
    async def test_long_item_times_out(self, hasty: Engine, endpoint: str, body: bytes) -> None:
        whole = await hasty.serve(endpoint, body, None)
        (item,) = await run(hasty, endpoint, [body])
        for answer in (whole, item):
            assert_error_envelope(answer, 504)
            assert content_of(answer)["error"]["code"] == "item_timeout"
        await assert_idle_within(hasty, FREES_S_MAX)
