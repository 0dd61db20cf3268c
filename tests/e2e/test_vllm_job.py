"""Goal: jobs of text and of vectors run on real vLLM, from file to output file."""

import json
import math
from pathlib import Path

import pytest

from cli.demo_models import ensure_tiny_llama, minilm_path
from tests.job_checks import assert_conserved, ended, lines_of, submit, watch
from tests.stacks import running_stack

SENTENCES = ["A man is eating food.", "Someone eats a meal.", "The queue of the printer is full."]


@pytest.mark.timeout(400)
def test_a_chat_job_and_an_embeddings_job_on_vllm(tmp_path: Path) -> None:
    llama = ensure_tiny_llama(tmp_path / "llama")
    models = ("--model", f"llama={llama}", "--model", f"minilm={minilm_path()}")
    with running_stack(tmp_path / "data", "--engine", "vllm", *models, model="llama") as stack:
        client = stack.client
        owners = {model.id: model.owned_by for model in client.models.list()}
        assert owners == {"llama": "millrace", "minilm": "millrace"}

        chat = submit(client, "llama", 60)
        content = b"".join(
            json.dumps(
                {
                    "custom_id": f"item-{n}",
                    "method": "POST",
                    "url": "/v1/embeddings",
                    "body": {"model": "minilm", "input": text},
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
