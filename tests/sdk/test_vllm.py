"""Goal: on real vLLM the official clients work, and jobs run from input to output file."""

import json
import math
from collections.abc import Iterator
from functools import partial

import pytest

from cli.demo.demo_models import ensure_tiny_llama, minilm_path
from tests.sdk.checks.catalogue import VLLM, checks
from tests.sdk.runs import VERSIONS, Reports, reports_of
from tests.sdk.sites import EMBEDDING_MODEL, vllm_site
from tests.support.job_checks import assert_conserved, ended, lines_of, submit, watch
from tests.support.stacks import Stack, running_stack

SENTENCES = ["A man is eating food.", "Someone eats a meal.", "The queue of the printer is full."]

pytestmark = pytest.mark.timeout(400)  # the first test includes environment, stack and all checks


@pytest.fixture(scope="module")
def vllm_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack of two real models: a random text model and an embedding model."""
    data = tmp_path_factory.mktemp("vllm")
    llama = ensure_tiny_llama(data / "llama")
    models = ("--model", f"llama={llama}", "--model", f"{EMBEDDING_MODEL}={minilm_path()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_ENGINE_VLLM_TOOL_CALL_PARSER", "hermes")
        with running_stack(data / "stack", "--engine", "vllm", *models, model="llama") as running:
            yield running


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, vllm_stack: Stack) -> Reports:
    """The reports of the real models."""
    return reports_of(request, "test_on_vllm", partial(vllm_site, vllm_stack))


@pytest.mark.parametrize(
    ("version", "check"), [(v, check) for v in VERSIONS for check in checks(VLLM, v)]
)
def test_on_vllm(version: str, check: str, reports: Reports) -> None:
    if failure := reports(version)[check]:
        pytest.fail(failure, pytrace=False)


def test_a_chat_job_and_an_embedding_job(vllm_stack: Stack) -> None:
    client = vllm_stack.client
    owners = {model.id: model.owned_by for model in client.models.list()}
    assert owners == {"llama": "millrace", EMBEDDING_MODEL: "millrace"}

    chat = submit(client, "llama", 60)
    content = b"".join(
        json.dumps(
            {
                "custom_id": f"item-{n}",
                "method": "POST",
                "url": "/v1/embeddings",
                "body": {"model": EMBEDDING_MODEL, "input": text},
            }
        ).encode()
        + b"\n"
        for n, text in enumerate(SENTENCES)
    )
    file = client.files.create(file=("texts.jsonl", content), purpose="batch")
    vectors = client.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )

    done = watch(client, chat.id, ended)
    assert done.status == "completed"
    assert_conserved(client, done, 60)
    answer = lines_of(client, done.output_file_id)[0]["response"]["body"]
    assert answer["model"] == "llama"
    assert answer["usage"]["completion_tokens"] == 8

    done = watch(client, vectors.id, ended)
    assert_conserved(client, done, len(SENTENCES))
    meal, food, printer = (
        line["response"]["body"]["data"][0]["embedding"]
        for line in lines_of(client, done.output_file_id)
    )
    assert cosine(meal, food) > cosine(meal, printer) + 0.2


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (
        math.hypot(*one) * math.hypot(*other)
    )
