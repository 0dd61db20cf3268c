"""The suite of `conformance`, continued: what an online call relies on holds for every engine.

A subclass of `InterruptionConformance` also gives a `breaking` fixture: an engine and a body whose
stream breaks off.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gpu_consumers.engines.engine import Engine, EngineAnswer, UsageMeter
from tests.integration.engines.conformance import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    FREES_S_MAX,
    IDLE,
    MODEL,
    ChatConformance,
    EmbeddingsConformance,
    Reported,
    assert_error_envelope,
    assert_idle_within,
    chat_body,
    completion_body,
    content_of,
    counts_of,
    embeddings_body,
    run,
    vectors_of,
)

Record = Callable[[str, object], None]


@dataclass
class Listener:
    """Keeps the events of one stream."""

    pieces: list[bytes] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)
    third: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, piece: bytes) -> None:
        assert b"\n" not in piece
        self.pieces.append(piece)
        self.first.set()
        if len(self.pieces) >= 3:
            self.third.set()

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(piece) for piece in self.pieces]

    def text(self, choice: int = 0) -> str:
        parts = [one for chunk in self.chunks for one in chunk["choices"] if one["index"] == choice]
        return "".join(
            (one["delta"].get("content") or "") if "delta" in one else one["text"] for one in parts
        )

    def finishes(self) -> dict[int, str]:
        ends = [one for chunk in self.chunks for one in chunk["choices"] if one["finish_reason"]]
        assert len({one["index"] for one in ends}) == len(ends)
        return {one["index"]: one["finish_reason"] for one in ends}


async def stream(engine: Engine, endpoint: str, body: bytes) -> tuple[EngineAnswer, Listener]:
    listener = Listener()
    answer = await engine.serve(endpoint, body, listener)
    return answer, listener


async def refused_stream(engine: Engine, endpoint: str, body: bytes) -> EngineAnswer:
    answer, listener = await stream(engine, endpoint, body)
    assert listener.pieces == []
    return answer


class OnlineChatConformance(ChatConformance):
    """Holds for an engine whose model writes text."""

    async def test_call_without_stream_is_answered_like_an_item(self, engine: Engine) -> None:
        body = chat_body(temperature=0, seed=1)
        (item,) = await run(engine, CHAT, [body])
        answer = await engine.serve(CHAT, body, None)
        assert answer.status_code == item.status_code == 200
        assert (answer.input_tokens, answer.output_tokens) == (
            item.input_tokens,
            item.output_tokens,
        )
        assert content_of(answer)["choices"] == content_of(item)["choices"]
        assert await counts_of(engine) == IDLE

    async def test_call_without_listener_cannot_stream(self, engine: Engine) -> None:
        assert_error_envelope(await engine.serve(CHAT, chat_body(stream=True), None), 400)

    async def test_body_without_stream_emits_nothing(self, engine: Engine) -> None:
        answer = await refused_stream(engine, CHAT, chat_body())
        assert answer.status_code == 200
        assert content_of(answer)["object"] == "chat.completion"

    async def test_chat_streams(self, engine: Engine) -> None:
        answer, listener = await stream(engine, CHAT, chat_body(stream=True))
        assert (answer.status_code, answer.body) == (200, b"")
        assert answer.input_tokens > 0
        assert 1 <= answer.output_tokens <= 8
        chunks = listener.chunks
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert all(MODEL in chunk["model"] for chunk in chunks)
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert all(chunk["choices"] and not chunk.get("usage") for chunk in chunks)
        assert listener.finishes().keys() == {0}

    async def test_events_show_the_model_that_was_asked_for(self, engine: Engine) -> None:
        _, listener = await stream(engine, CHAT, chat_body(stream=True, model="production"))
        shown = {chunk["model"].removeprefix("simulated/") for chunk in listener.chunks}
        assert shown == {"production"}

    @pytest.mark.parametrize("asked", [1, "true"])
    async def test_stream_may_be_requested_in_other_forms(
        self, engine: Engine, asked: object
    ) -> None:
        answer, listener = await stream(engine, CHAT, chat_body(stream=asked))
        assert (answer.status_code, answer.body) == (200, b"")
        assert listener.finishes().keys() == {0}
        (item,) = await run(engine, CHAT, [chat_body(stream=asked)])
        assert_error_envelope(item, 400)

    async def test_requested_usage_comes_last(self, engine: Engine) -> None:
        body = chat_body(stream=True, stream_options={"include_usage": True})
        answer, listener = await stream(engine, CHAT, body)
        *chunks, last = listener.chunks
        assert last["choices"] == []
        assert last["usage"]["prompt_tokens"] == answer.input_tokens > 0
        assert last["usage"]["completion_tokens"] == answer.output_tokens > 0
        assert all(chunk["choices"] and not chunk.get("usage") for chunk in chunks)

    @pytest.mark.parametrize("options", [None, {"include_usage": False}])
    async def test_unrequested_usage_is_counted(self, engine: Engine, options: object) -> None:
        body = chat_body(stream=True, stream_options=options, temperature=0)
        answer, listener = await stream(engine, CHAT, body)
        whole = await engine.serve(CHAT, chat_body(temperature=0), None)
        assert answer.output_tokens == whole.output_tokens
        assert b'"usage":{' not in b"".join(listener.pieces)

    async def test_completion_streams(self, engine: Engine) -> None:
        answer, listener = await stream(engine, COMPLETIONS, completion_body(stream=True))
        assert (answer.status_code, answer.body) == (200, b"")
        assert {chunk["object"] for chunk in listener.chunks} == {"text_completion"}
        assert listener.finishes().keys() == {0}
        assert answer.output_tokens > 0

    async def test_stream_equals_the_answer_without_stream(self, engine: Engine) -> None:
        _, listener = await stream(engine, CHAT, chat_body(stream=True, temperature=0))
        whole = content_of(await engine.serve(CHAT, chat_body(temperature=0), None))
        assert len(listener.text()) > 0
        if not listener.text().startswith("Simulated"):  # its text depends on every byte of a body
            assert listener.text() == whole["choices"][0]["message"]["content"]

    async def test_every_choice_streams_and_ends(self, engine: Engine) -> None:
        answer, listener = await stream(engine, CHAT, chat_body(stream=True, n=3, seed=7))
        assert listener.finishes().keys() == {0, 1, 2}
        whole = await engine.serve(CHAT, chat_body(n=3, seed=7), None)
        choices = content_of(whole)["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        assert 3 <= whole.output_tokens <= 24
        assert 3 <= answer.output_tokens <= 24

    async def test_text_ends_before_the_stop_sequence(self, engine: Engine) -> None:
        asks: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
        whole = content_of(await engine.serve(CHAT, chat_body(**asks), None))
        text = whole["choices"][0]["message"]["content"]
        stop = next(part for part in text[2:] if part.isascii() and part.isalnum())
        bodies = chat_body(**asks, stop=stop), chat_body(**asks, stop=[stop], stream=True)
        short = content_of(await engine.serve(CHAT, bodies[0], None))["choices"][0]
        answer, listener = await stream(engine, CHAT, bodies[1])
        assert stop not in short["message"]["content"] + listener.text()
        assert short["finish_reason"] == "stop"
        assert (answer.status_code, listener.finishes()) == (200, {0: "stop"})

    @pytest.mark.parametrize(
        "body",
        [
            b'{"stream":true',
            b'{"stream":true}',
            chat_body(stream=True, messages=[]),
            chat_body(stream=True, max_tokens=-1),
            chat_body(stream=True, stream_options=7),
        ],
        ids=lambda body: body[:24].decode(),
    )
    async def test_refused_stream_emits_nothing(self, engine: Engine, body: bytes) -> None:
        assert_error_envelope(await refused_stream(engine, CHAT, body), 400)

    async def test_unknown_endpoint_does_not_stream(self, engine: Engine) -> None:
        answer = await refused_stream(engine, "/v1/nothing", b'{"stream":true}')
        assert_error_envelope(answer, 404)

    async def test_cancelled_stream_releases_its_slot(
        self, engine: Engine, record_property: Record
    ) -> None:
        listener, meter = Listener(), UsageMeter()
        body = chat_body(stream=True, max_tokens=2000, ignore_eos=True)
        call = asyncio.create_task(engine.serve(CHAT, body, listener, meter))
        await asyncio.wait_for(listener.third.wait(), 30)
        spent = meter.with_usage(EngineAnswer(0, b""))
        assert 1 <= spent.output_tokens <= 2000
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        record_property("freed_s", await assert_idle_within(engine, FREES_S_MAX))
        count = len(listener.pieces)
        await run(engine, CHAT, [chat_body()] * engine.concurrency)
        assert len(listener.pieces) == count

    async def test_meter_is_notified_of_the_start_first(self, engine: Engine) -> None:
        for stream in (False, True):
            listener, said_before = Listener(), list[int]()
            meter = UsageMeter(lambda heard=listener, at=said_before: at.append(len(heard.pieces)))  # type: ignore[misc]
            answer = await engine.serve(CHAT, chat_body(stream=stream), listener, meter)
            assert answer.status_code == 200
            assert said_before
            assert said_before[0] == 0

    async def test_cancelled_calls_release_all_slots(
        self, engine: Engine, record_property: Record
    ) -> None:
        body = chat_body(max_tokens=2000, ignore_eos=True)
        calls = [
            asyncio.create_task(engine.serve(CHAT, body, None))
            for _ in range(3 * engine.concurrency)
        ]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        record_property("freed_s", await assert_idle_within(engine, FREES_S_MAX))

    async def test_calls_start_while_items_fill_the_engine(self, engine: Engine) -> None:
        assert engine.headroom > 0
        reported = Reported()
        items = [chat_body(max_tokens=64, ignore_eos=True)] * (60 * engine.concurrency)
        bulk = asyncio.create_task(engine.execute(CHAT, items, reported))
        await asyncio.wait_for(reported.first.wait(), 30)
        ended_before = len(reported)
        for _ in range(5):
            assert (await engine.serve(CHAT, chat_body(max_tokens=1), None)).status_code == 200
        assert len(reported) < ended_before + 10 * engine.concurrency
        assert not bulk.done()
        bulk.cancel()
        await asyncio.wait([bulk])
        await assert_idle_within(engine, FREES_S_MAX)


class InterruptionConformance:
    """Holds for an engine whose streams may break off."""

    async def test_interrupted_stream_ends_with_an_error(
        self, breaking: tuple[Engine, bytes]
    ) -> None:
        engine, body = breaking
        answer, listener = await stream(engine, CHAT, body)
        assert listener.pieces
        assert listener.finishes() == {}
        assert answer.status_code >= 500
        assert content_of(answer)["error"].keys() == {"message", "type", "param", "code"}
        assert answer.output_tokens > 0  # what was emitted is counted
        await assert_idle_within(engine, FREES_S_MAX)


class OnlineEmbeddingsConformance(EmbeddingsConformance):
    """Holds for an engine whose model makes vectors."""

    async def test_call_without_stream_is_answered_like_an_item(self, engine: Engine) -> None:
        body = embeddings_body(["a red apple", "a pear"], encoding_format="base64")
        (item,) = await run(engine, EMBEDDINGS, [body])
        answer = await engine.serve(EMBEDDINGS, body, None)
        assert answer.status_code == 200
        assert answer.input_tokens == item.input_tokens
        assert {type(one["embedding"]) for one in content_of(answer)["data"]} == {str}
        # An engine may run the two texts together or apart: bfloat16 rounds them otherwise then.
        for vector, other in zip(vectors_of(answer), vectors_of(item), strict=True):
            assert vector == pytest.approx(other, abs=5e-3)
        assert await counts_of(engine) == IDLE

    async def test_embeddings_do_not_stream(self, engine: Engine) -> None:
        body = embeddings_body("a", stream=True, stream_options={"include_usage": True})
        online = await refused_stream(engine, EMBEDDINGS, body)
        (item,) = await run(engine, EMBEDDINGS, [body])
        for answer in (online, item):
            assert answer.status_code == 200
            assert len(content_of(answer)["data"]) == 1
            assert answer.input_tokens > 0


class ScoresConformance:
    """Holds for an engine whose model compares texts."""

    async def test_pairs_are_scored(self, engine: Engine) -> None:
        body = msgspec.json.encode({"model": MODEL, "queries": "fruit", "documents": ["a", "b"]})
        answer = await engine.serve("/v1/score", body, None)
        content = content_of(answer)
        assert [one["index"] for one in content["data"]] == [0, 1]
        assert all(isinstance(one["score"], float) for one in content["data"])
        assert content["usage"]["prompt_tokens"] == answer.input_tokens > 0

    async def test_documents_are_ranked(self, engine: Engine) -> None:
        documents = ["The sky is blue.", "An apple is a fruit.", "Iron is a metal."]
        body = {"model": MODEL, "query": "Which fruit?", "documents": documents, "top_n": 2}
        answer = await engine.serve("/v1/rerank", msgspec.json.encode(body), None)
        results = content_of(answer)["results"]
        scores = [one["relevance_score"] for one in results]
        assert scores == sorted(scores, reverse=True)
        assert len(results) == 2
        assert all(one["document"]["text"] == documents[one["index"]] for one in results)
        assert answer.input_tokens > 0

    @pytest.mark.parametrize(
        ("endpoint", "asked"), [("/v1/score", "queries"), ("/v1/rerank", "query")]
    )
    async def test_scores_do_not_stream(self, engine: Engine, endpoint: str, asked: str) -> None:
        body = {"model": MODEL, asked: "fruit", "documents": ["a", "b"], "stream": True}
        answer = await refused_stream(engine, endpoint, msgspec.json.encode(body))
        assert answer.status_code == 200
        assert content_of(answer)["model"]

    @pytest.mark.parametrize("endpoint", ["/v1/score", "/v1/rerank"])
    @pytest.mark.parametrize("body", [b"{", b"{}", b'{"model":"model-under-test","query":1}'])
    async def test_invalid_body_is_refused(
        self, engine: Engine, endpoint: str, body: bytes
    ) -> None:
        assert_error_envelope(await engine.serve(endpoint, body, None), 400)


class ClassesConformance:
    """Holds for an engine whose model sorts texts into classes."""

    async def test_each_input_gets_a_class(self, engine: Engine) -> None:
        body = msgspec.json.encode({"model": MODEL, "input": ["Good.", "Bad."]})
        answer = await engine.serve("/v1/classify", body, None)
        content = content_of(answer)
        for index, one in enumerate(content["data"]):
            assert one["index"] == index
            assert one["num_classes"] == len(one["probs"]) > 1
            assert sum(one["probs"]) == pytest.approx(1, abs=0.01)
        assert content["usage"]["prompt_tokens"] == answer.input_tokens > 0

    async def test_classes_do_not_stream(self, engine: Engine) -> None:
        body = msgspec.json.encode({"model": MODEL, "input": "Good.", "stream": True})
        answer = await refused_stream(engine, "/v1/classify", body)
        assert answer.status_code == 200
        assert len(content_of(answer)["data"]) == 1
