"""Goal: real vLLM on this machine passes the conformance suite of the engines."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest

from cli.demo.demo_models import ensure_tiny_llama
from gpu_consumers.engines.engine import Engine
from tests.e2e.hostile_calls import run_all_beside
from tests.e2e.hostile_samples import GROWN_BYTES_MAX, HOSTILE, OTHERS_S_MAX
from tests.e2e.remote_engine import VLLM_ENV, RemoteEngine, running_engine
from tests.integration.engines.conformance import (
    CHAT,
    EMBEDDINGS,
    LONG,
    MODEL,
    CutsConformance,
    assert_error_envelope,
    await_work,
    chat_body,
    content_of,
    embeddings_body,
    run,
)
from tests.integration.engines.conformance_online import (
    InterruptionConformance,
    OnlineChatConformance,
    stream,
)
from tests.support.hostile_bodies import chat_bodies

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("vllm_host")]

HASTY_S, ITEM_TIMEOUT_S = 1.0, 600.0
HOSTILE_S_MAX = 200.0
"""Seconds of one hostile body. All have to end by themselves, on a slow machine too."""

ONLY_SEVEN = {
    "type": "json_schema",
    "json_schema": {
        "name": "x",
        "schema": {
            "type": "object",
            "properties": {"a": {"enum": [7]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
"""A response format."""


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny_llama(tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture(scope="class")
def chat_engine(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RemoteEngine]:
    with running_engine(
        tmp_path_factory.mktemp("chat"),
        VLLM_ENV
        | {
            "MODEL_PATH": str(tiny_llama),
            "VLLM_TOOL_CALL_PARSER": "hermes",
            "ANSWER_BYTES_MAX": str(4 * 2**20),  # 12 answers have more
        },
    ) as engine:
        yield engine


@pytest.fixture
async def hasty_engine(chat_engine: RemoteEngine) -> AsyncIterator[RemoteEngine]:
    """The chat engine with a short timeout."""
    await chat_engine.set_item_timeout(HASTY_S)
    yield chat_engine
    await chat_engine.set_item_timeout(ITEM_TIMEOUT_S)


class TestVllmChat(OnlineChatConformance, CutsConformance, InterruptionConformance):
    @pytest.fixture
    def engine(self, chat_engine: Engine) -> Engine:
        return chat_engine

    @pytest.fixture
    def breaking(self, hasty_engine: Engine) -> tuple[Engine, bytes]:
        return hasty_engine, chat_body(stream=True, max_tokens=2000, ignore_eos=True)

    @pytest.fixture
    def hasty(self, hasty_engine: Engine) -> Engine:
        return hasty_engine

    async def test_an_interrupted_stream_is_counted_completely(
        self, breaking: tuple[Engine, bytes]
    ) -> None:
        engine, body = breaking
        answer, listener = await stream(engine, CHAT, body)
        assert content_of(answer)["error"]["code"] == "item_timeout"
        assert answer.input_tokens > 0
        assert answer.output_tokens >= len(listener.pieces) - 1  # a chunk may have several
        assert b'"usage":{' not in b"".join(listener.pieces)

    async def test_a_late_call_of_a_suspended_core_times_out(
        self, hasty_engine: RemoteEngine
    ) -> None:
        call = asyncio.create_task(hasty_engine.serve(CHAT, chat_body(**LONG), None))
        await await_work(hasty_engine)
        for process in hasty_engine.children:
            process.suspend()
        try:
            done, _ = await asyncio.wait([call], timeout=2.5 * HASTY_S)
        finally:
            for process in hasty_engine.children:
                process.resume()
        assert not done
        assert content_of(await call)["error"]["code"] == "item_timeout"

    @pytest.mark.parametrize("answers", [1, 3])
    async def test_a_whole_call_reports_the_tokens_that_it_used(
        self, chat_engine: RemoteEngine, answers: int
    ) -> None:
        answer = await chat_engine.serve(CHAT, chat_body(n=answers, max_tokens=40), None)
        spent = await chat_engine.fetch_spent()
        assert (spent.input_tokens, spent.output_tokens) == (
            answer.input_tokens,
            answer.output_tokens,
        )

    async def test_an_aborted_whole_call_reports_what_it_generated(
        self, chat_engine: RemoteEngine
    ) -> None:
        call = asyncio.create_task(chat_engine.serve(CHAT, chat_body(**LONG), None))
        await await_work(chat_engine)
        began_s = time.monotonic()
        while not (spent := await chat_engine.fetch_spent()).output_tokens:
            assert time.monotonic() < began_s + 30
            await asyncio.sleep(0.005)
        call.cancel()
        await asyncio.wait([call])
        left = await chat_engine.fetch_spent()
        assert left.input_tokens == spent.input_tokens > 0
        assert spent.output_tokens <= left.output_tokens < LONG["max_tokens"]

    async def test_continuous_usage_is_passed_on_request(self, engine: Engine) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer, listener = await stream(
            engine, CHAT, chat_body(stream=True, stream_options=options)
        )
        assert all(chunk["usage"]["prompt_tokens"] > 0 for chunk in listener.chunks)
        assert listener.chunks[-1]["usage"]["completion_tokens"] == answer.output_tokens

    async def test_tools_and_schemas_stream(self, engine: Engine) -> None:
        body = chat_body(stream=True, response_format=ONLY_SEVEN, logprobs=True, max_tokens=60)
        answer, listener = await stream(engine, CHAT, body)
        assert answer.status_code == 200
        assert listener.text().lstrip().startswith("{")
        assert any(one["choices"][0].get("logprobs") for one in listener.chunks)

    async def test_tools_are_accepted_with_a_parser(self, engine: Engine) -> None:
        # A parser is set, so vLLM accepts the body; this model calls no tool.
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        (answer,) = await run(engine, CHAT, [chat_body(tools=[tool], tool_choice="auto")])
        assert content_of(answer)["choices"][0]["finish_reason"] in {"stop", "length"}

    async def test_a_stream_beyond_the_context_is_refused(self, engine: Engine) -> None:
        answer, listener = await stream(engine, CHAT, chat_body("word " * 5000, stream=True))
        assert_error_envelope(answer, 400)
        assert listener.pieces == []

    async def test_a_disconnected_client_frees_its_kv_cache(
        self, chat_engine: RemoteEngine
    ) -> None:
        """Closing the connection cancels the call, as in a replica."""
        call = asyncio.create_task(chat_engine.serve(CHAT, chat_body(**LONG), None))
        while await chat_engine.fetch_kv_cache_usage() == 0:
            assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(30):
            while await chat_engine.fetch_kv_cache_usage() > 0:
                pass

    async def test_online_calls_overtake_queued_items_in_vllm(self, engine: Engine) -> None:
        bodies = [chat_body(max_tokens=400, ignore_eos=True)] * 200
        bulk = asyncio.create_task(engine.execute(CHAT, bodies, lambda *_: None))
        await await_work(engine)
        for body in (chat_body(max_tokens=1), chat_body(max_tokens=1, priority=-5)):
            assert (await engine.serve(CHAT, body, None)).status_code == 200
        assert not bulk.done()
        bulk.cancel()
        await asyncio.wait([bulk])

    async def test_a_prompt_beyond_the_context_is_refused(self, engine: Engine) -> None:
        for words in (5000, 50_000):  # by its tokens, and by its length alone
            (answer,) = await run(engine, CHAT, [chat_body("word " * words)])
            assert_error_envelope(answer, 400)
            assert content_of(answer)["error"]["code"] == "context_length_exceeded"

    async def test_a_body_of_many_sequences_is_refused(self, engine: Engine) -> None:
        body = msgspec.json.encode({"model": MODEL, "prompt": ["a"] * 65, "n": 2})
        (answer,) = await run(engine, "/v1/completions", [body])
        assert_error_envelope(answer, 400)
        assert content_of(answer)["error"]["param"] == "prompt"

    async def test_hostile_bodies_do_not_delay_another_tenant(
        self, chat_engine: RemoteEngine
    ) -> None:
        bodies = {name: body for name, body in chat_bodies(MODEL).items() if name in HOSTILE}
        other = (CHAT, chat_body(max_tokens=1))
        runs = await run_all_beside(chat_engine, bodies, other, timeout_s=HOSTILE_S_MAX)
        assert runs.by_name.keys() == HOSTILE
        assert runs.slower_than(OTHERS_S_MAX) == {}
        assert runs.grown_bytes < GROWN_BYTES_MAX
        errors = {name for name, run in runs.by_name.items() if run.answer.status_code >= 500}
        assert errors == set()
        assert runs.by_name["log probabilities of a prompt"].answer.status_code == 200
        for name in ("12 answers with log probabilities", "128 echoes with log probabilities"):
            answer = runs.by_name[name].answer
            assert_error_envelope(answer, 400)
            assert content_of(answer)["error"]["code"] == "answer_too_large"

    async def test_waves_have_the_log_probabilities_of_each_prompt(self, engine: Engine) -> None:
        """They run in 13 waves, and are encoded in pieces."""
        prompts = [f"text number {number}" for number in range(13)]
        fields = {"model": MODEL, "max_tokens": 3, "ignore_eos": True, "echo": True, "logprobs": 2}
        bodies = [msgspec.json.encode(fields | {"prompt": one}) for one in (prompts, prompts[12])]
        whole, alone = await run(engine, "/v1/completions", bodies)
        choices = content_of(whole)["choices"]
        assert [choice["index"] for choice in choices] == list(range(13))
        for prompt, choice in zip(prompts, choices, strict=True):
            logprobs = choice["logprobs"]
            assert choice["text"].startswith(prompt)
            assert len({len(values) for values in logprobs.values()}) == 1
            assert len(choice["prompt_logprobs"]) == len(logprobs["tokens"]) - 3
            assert logprobs["token_logprobs"][0] is None
            starts = accumulate(map(len, logprobs["tokens"][:-1]), initial=0)
            assert logprobs["text_offset"] == [*starts]
        (expected,) = content_of(alone)["choices"]
        prompt_tokens = len(expected["prompt_logprobs"])
        for name in ("token_logprobs", "tokens", "text_offset"):
            found = choices[12]["logprobs"][name][1:prompt_tokens]
            assert found == pytest.approx(expected["logprobs"][name][1:prompt_tokens], abs=0.1)

    async def test_many_sequences_are_answered_as_if_whole(self, engine: Engine) -> None:
        """Of 16 sequences at once 12 may be of one body; 13 run in two waves."""
        prompts = [f"text number {number}" for number in range(13)]
        fields = {"model": MODEL, "max_tokens": 4, "ignore_eos": True, "echo": True}
        bodies = [msgspec.json.encode(fields | {"prompt": one}) for one in (prompts, prompts[12])]
        whole, alone = await run(engine, "/v1/completions", bodies)
        choices = content_of(whole)["choices"]
        assert [choice["index"] for choice in choices] == list(range(13))
        for prompt, choice in zip(prompts, choices, strict=True):
            assert choice["text"].startswith(prompt)
        assert whole.output_tokens == 13 * alone.output_tokens == 13 * 4
        assert whole.input_tokens >= 13 * (
            alone.input_tokens - 1
        )  # ten of the numbers have one digit

    async def test_schemas_and_simple_patterns_are_accepted(self, engine: Engine) -> None:
        body = chat_body(structured_outputs={"regex": "[a-c]{3}"}, max_tokens=20)
        (answer,) = await run(engine, CHAT, [body])
        text = content_of(answer)["choices"][0]["message"]["content"]
        assert len(text) == 3
        assert set(text) <= set("abc")

    async def test_a_shared_prefix_is_counted_as_cached(self, engine: Engine) -> None:
        body = chat_body("The same long question. " * 20, max_tokens=1)
        await run(engine, CHAT, [body])
        (answer,) = await run(engine, CHAT, [body])
        assert 0 < answer.cached_tokens < answer.input_tokens

    async def test_a_schema_is_enforced(self, engine: Engine) -> None:
        (answer,) = await run(engine, CHAT, [chat_body(response_format=ONLY_SEVEN, max_tokens=60)])
        assert answer.status_code == 200
        text = content_of(answer)["choices"][0]["message"]["content"]
        assert text.lstrip().startswith("{")

    async def test_a_text_model_has_no_embeddings(self, engine: Engine) -> None:
        (answer,) = await run(engine, EMBEDDINGS, [embeddings_body("a")])
        assert_error_envelope(answer, 404)
