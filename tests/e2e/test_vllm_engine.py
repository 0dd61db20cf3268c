"""Goal: real vLLM on this machine keeps the contract that the other engines keep."""

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from cli.demo_models import ensure_tiny_llama, minilm_path
from gpu_consumers.engines.engine import Engine
from tests.e2e.remote_engine import running_engine
from tests.integration.engines.conformance import (
    CHAT,
    EMBEDDINGS,
    MODEL,
    ChatConformance,
    EmbeddingsConformance,
    assert_error_envelope,
    chat_body,
    content_of,
    embeddings_body,
    run,
    vectors_of,
)

pytestmark = pytest.mark.timeout(300)

ENV = {"KIND": "vllm", "MODEL_NAME": MODEL, "CONCURRENCY": "20", "VLLM_MAX_NUM_SEQS": "16"}


@pytest.fixture(scope="module")
def chat_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("chat")
    model = ensure_tiny_llama(folder / "tiny-llama")
    with running_engine(folder, ENV | {"MODEL_PATH": str(model)}) as engine:
        yield engine


@pytest.fixture(scope="module")
def embeddings_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("embeddings")
    with running_engine(folder, ENV | {"MODEL_PATH": str(minilm_path())}) as engine:
        yield engine


class TestVllmChat(ChatConformance):
    @pytest.fixture
    def engine(self, chat_engine: Engine) -> Engine:
        return chat_engine

    async def test_no_temperature_no_chance(self, engine: Engine) -> None:
        first, second = await run(engine, CHAT, [chat_body(temperature=0, seed=1)] * 2)
        assert content_of(first)["choices"] == content_of(second)["choices"]

    async def test_a_prompt_above_the_context_is_refused(self, engine: Engine) -> None:
        (answer,) = await run(engine, CHAT, [chat_body("word " * 5000)])
        assert_error_envelope(answer, 400)

    async def test_another_model_is_not_served(self, engine: Engine) -> None:
        (answer,) = await run(engine, CHAT, [chat_body(model="another")])
        assert_error_envelope(answer, 404)
        assert content_of(answer)["error"]["code"] == "model_not_found"

    async def test_a_shared_prefix_is_counted_as_cached(self, engine: Engine) -> None:
        body = chat_body("The same long question. " * 20, max_tokens=1)
        await run(engine, CHAT, [body])
        (answer,) = await run(engine, CHAT, [body])
        assert 0 < answer.cached_tokens < answer.input_tokens

    async def test_a_schema_is_enforced(self, engine: Engine) -> None:
        schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"],
                  "additionalProperties": False}  # fmt: skip
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        (answer,) = await run(engine, CHAT, [chat_body(response_format=form, max_tokens=60)])
        assert answer.status_code == 200
        text = content_of(answer)["choices"][0]["message"]["content"]
        assert text.lstrip().startswith("{")

    async def test_embeddings_are_not_a_text_models(self, engine: Engine) -> None:
        (answer,) = await run(engine, EMBEDDINGS, [embeddings_body("a")])
        assert_error_envelope(answer, 404)


class TestVllmEmbeddings(EmbeddingsConformance):
    @pytest.fixture
    def engine(self, embeddings_engine: Engine) -> Engine:
        return embeddings_engine

    async def test_alike_texts_are_near(self, engine: Engine) -> None:
        texts = ["A man is eating food.", "Someone eats a meal.", "The queue of the GPU is full."]
        (answer,) = await run(engine, EMBEDDINGS, [embeddings_body(texts)])
        vectors = np.array(vectors_of(answer))
        likeness = vectors @ vectors.T
        assert likeness[0, 1] > 0.5 > likeness[0, 2] + 0.2

    async def test_another_model_is_not_served(self, engine: Engine) -> None:
        (answer,) = await run(engine, EMBEDDINGS, [embeddings_body("a", model="another")])
        assert_error_envelope(answer, 404)

    async def test_many_items_go_through(self, engine: Engine) -> None:
        bodies = [embeddings_body(f"Sentence number {number}.") for number in range(500)]
        answers = await run(engine, EMBEDDINGS, bodies)
        assert {answer.status_code for answer in answers} == {200}
        assert len({msgspec.json.encode(vectors_of(answer)) for answer in answers}) == 500
