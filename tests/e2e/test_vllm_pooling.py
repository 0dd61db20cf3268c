"""Goal: real vLLM embeds, scores and classifies as the conformance suite says."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from cli.demo.demo_models import minilm_path
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.model_kind import endpoints_of_folder
from tests.e2e.hostile_calls import run_all_beside
from tests.e2e.hostile_samples import GROWN_BYTES_MAX, HOSTILE_INPUTS, OTHERS_S_MAX
from tests.e2e.remote_engine import VLLM_ENV, RemoteEngine, running_engine
from tests.e2e.tiny_classifier import BROKEN_WORD, write_classifier
from tests.integration.engines.conformance import (
    EMBEDDINGS,
    MODEL,
    assert_error_envelope,
    content_of,
    embeddings_body,
    run,
    vectors_of,
)
from tests.integration.engines.conformance_online import (
    ClassesConformance,
    OnlineEmbeddingsConformance,
    ScoresConformance,
)
from tests.support.hostile_bodies import pooling_bodies

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("vllm_host")]

INPUTS_TIMEOUT_S = 150.0
"""Seconds for a body of 2,048 texts, which is valid and must be answered."""


@pytest.fixture(scope="class")
def embeddings_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    folder = tmp_path_factory.mktemp("embeddings")
    template = folder / "chat.jinja"  # the model has no chat template
    template.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    env = VLLM_ENV | {"MODEL_PATH": str(minilm_path()), "VLLM_CHAT_TEMPLATE": str(template)}
    with running_engine(folder, env) as engine:
        yield engine


@pytest.fixture(scope="class")
def classes_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with classifier(tmp_path_factory.mktemp("classes"), 3) as engine:
        yield engine


@pytest.fixture(scope="class")
def scores_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with classifier(tmp_path_factory.mktemp("scores"), 1) as engine:
        yield engine


def classifier(folder: Path, classes: int) -> AbstractContextManager[Engine]:
    model = write_classifier(folder / "model", classes=classes)
    assert "/v1/classify" in endpoints_of_folder(model)
    return running_engine(folder, VLLM_ENV | {"MODEL_PATH": str(model)})


class TestVllmEmbeddings(OnlineEmbeddingsConformance, ScoresConformance):
    @pytest.fixture
    def engine(self, embeddings_engine: Engine) -> Engine:
        return embeddings_engine

    async def test_hostile_bodies_do_not_delay_another_tenant(
        self, embeddings_engine: RemoteEngine
    ) -> None:
        bodies = {n: body for n, body in pooling_bodies(MODEL).items() if n in HOSTILE_INPUTS}
        other = EMBEDDINGS, embeddings_body("a")
        runs = await run_all_beside(embeddings_engine, bodies, other, INPUTS_TIMEOUT_S)
        assert runs.by_name.keys() == HOSTILE_INPUTS
        assert runs.slower_than(OTHERS_S_MAX) == {}
        assert runs.grown_bytes < GROWN_BYTES_MAX
        assert runs.by_name["2,048 texts"].answer.status_code == 200

    async def test_many_inputs_are_answered_as_if_whole(self, engine: Engine) -> None:
        texts = [f"text number {number}" for number in range(300)]
        many = embeddings_body("").replace(b'""', msgspec.json.encode(texts))
        whole, alone = await run(engine, EMBEDDINGS, [many, embeddings_body(texts[299])])
        rows = content_of(whole)["data"]
        assert [row["index"] for row in rows] == list(range(300))
        assert rows[299]["embedding"] == pytest.approx(
            content_of(alone)["data"][0]["embedding"], abs=0.05
        )
        assert whole.input_tokens == content_of(whole)["usage"]["prompt_tokens"] > 900
        ranked = {"model": MODEL, "query": "a query", "documents": texts}
        (query,) = await run(engine, EMBEDDINGS, [embeddings_body("a query")])
        (ranks,) = await run(engine, "/v1/rerank", [msgspec.json.encode(ranked)])
        assert ranks.input_tokens == whole.input_tokens + query.input_tokens

    async def test_a_body_is_answered_under_its_name_of_the_model(self, engine: Engine) -> None:
        bodies = [embeddings_body("a"), embeddings_body("a", model="alias")]
        usual, renamed = await run(engine, EMBEDDINGS, bodies)
        assert vectors_of(renamed) == [pytest.approx(vectors_of(usual)[0], abs=5e-3)]
        assert msgspec.json.decode(renamed.body)["model"] == "alias"

    async def test_a_conversation_is_embedded_by_its_chat_template(self, engine: Engine) -> None:
        message = {"role": "user", "content": "a red apple"}
        bodies = [
            embeddings_body("a red apple"),
            msgspec.json.encode(
                {"model": MODEL, "messages": [message], "add_special_tokens": True}
            ),
            embeddings_body([message], add_special_tokens=True),
        ]
        (text,), *conversations = [
            vectors_of(answer) for answer in await run(engine, EMBEDDINGS, bodies)
        ]
        assert conversations == [[pytest.approx(text, abs=5e-3)]] * 2

    @pytest.mark.parametrize(
        ("field", "value"), [("normalize", True), ("task", "encode"), ("messages", 7)]
    )
    async def test_an_invalid_field_is_refused(
        self, engine: Engine, field: str, value: object
    ) -> None:
        given = {} if field == "messages" else {"input": "a"}
        body = msgspec.json.encode({"model": MODEL, field: value} | given)
        (answer,) = await run(engine, EMBEDDINGS, [body])
        assert_error_envelope(answer, 400)
        assert content_of(answer)["error"]["param"] == field

    async def test_many_items_are_answered(self, engine: Engine) -> None:
        bodies = [embeddings_body(f"Sentence number {number}.") for number in range(500)]
        answers = await run(engine, EMBEDDINGS, bodies)
        assert {answer.status_code for answer in answers} == {200}
        assert len({msgspec.json.encode(vectors_of(answer)) for answer in answers}) == 500


class TestVllmClasses(ClassesConformance):
    @pytest.fixture
    def engine(self, classes_engine: Engine) -> Engine:
        return classes_engine

    async def test_pairs_are_not_scored(self, engine: Engine) -> None:
        answer = await engine.serve("/v1/score", b'{"queries":"a","documents":"b"}', None)
        assert_error_envelope(answer, 404)

    async def test_a_nan_fails_its_item_alone(self, engine: Engine) -> None:
        texts = ["a quiet hill", f"a quiet {BROKEN_WORD}", "a quiet lake"]
        bodies = [msgspec.json.encode({"model": MODEL, "input": text}) for text in texts]
        answers = await run(engine, "/v1/classify", bodies)
        assert [answer.status_code for answer in answers] == [200, 500, 200]
        assert content_of(answers[1])["error"]["code"] == "answer_not_finite"


class TestVllmScores(ScoresConformance):
    @pytest.fixture
    def engine(self, scores_engine: Engine) -> Engine:
        return scores_engine
