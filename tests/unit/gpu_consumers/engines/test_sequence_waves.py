"""Goal: a request for many sequences is answered as if it had run whole."""

from typing import Any

import pytest
from pydantic import BaseModel

from gpu_consumers.engines.vllm.sequence_waves import (
    WaveLimits,
    join_responses,
    sequence_waves,
    wave_sequences,
)


class Request(BaseModel):
    prompt: str | list[str] | list[int] | None = "a"
    prompt_embeds: list[str] | None = None
    n: int | None = 1
    seed: int | None = None
    max_tokens: int | None = None
    echo: bool = False
    logprobs: int | bool | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    use_beam_search: bool = False


class Chat(Request):
    top_logprobs: int | None = 0


class Choice(BaseModel):
    index: int
    text: str


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: str | None = None


class Response(BaseModel):
    choices: list[Choice]
    usage: Usage


def respond(request: Request) -> Response:
    """Answer as vLLM does: the answers of a prompt follow one another, each with its own seed."""
    prompts = request.prompt if isinstance(request.prompt, list) else [request.prompt]
    n, first = request.n or 1, request.seed or 0
    texts = [f"{prompt}{first + one}" for prompt in prompts for one in range(n)]
    prompt_tokens, tokens = 3 * len(prompts), 5 * len(texts)
    return Response(
        choices=[Choice(index=index, text=text) for index, text in enumerate(texts)],
        usage=Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens,
            total_tokens=prompt_tokens + tokens,
            prompt_tokens_details=str(prompts[-1]),
        ),
    )


@pytest.mark.parametrize(
    ("fields", "waves"),
    [
        (
            {"prompt": ["a", "b", "c", "d", "e"]},
            [{"prompt": ["a", "b", "c", "d"]}, {"prompt": ["e"]}],
        ),
        ({"prompt": ["a", "b", "c"], "n": 2}, [{"prompt": ["a", "b"]}, {"prompt": ["c"]}]),
        ({"prompt": ["a", "b"], "n": 3}, [{"prompt": ["a"]}, {"prompt": ["b"]}]),
        (
            {"prompt": ["a", "b"], "n": 5, "seed": 1},
            [
                {"prompt": ["a"], "n": 4, "seed": 1},
                {"prompt": ["a"], "n": 1, "seed": 5},
                {"prompt": ["b"], "n": 4, "seed": 1},
                {"prompt": ["b"], "n": 1, "seed": 5},
            ],
        ),
        ({"n": 9, "seed": 7}, [{"n": 4, "seed": 7}, {"n": 4, "seed": 11}, {"n": 1, "seed": 15}]),
        ({"prompt": ["a"], "n": 5, "seed": 0}, [{"n": 4, "seed": 0}, {"n": 1, "seed": 4}]),
        (
            {"prompt": None, "n": 5, "seed": 1, "prompt_logprobs": 3},
            [{"n": 4}, {"n": 1, "seed": 5, "prompt_logprobs": None}],
        ),
        ({"prompt": None, "n": 8, "seed": 1}, [{"n": 4, "seed": 1}, {"n": 4, "seed": 5}]),
    ],
)
def test_waves_are_answered_as_one_request(
    fields: dict[str, Any], waves: list[dict[str, Any]]
) -> None:
    request = Request(**fields)
    parts = sequence_waves(request, 4)
    assert parts == [request.model_copy(update=wave) for wave in waves]
    assert join_responses(parts, [respond(part) for part in parts]) == respond(request)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 4},
        {"n": None},
        {"prompt": ["a", "b"], "n": 2},
        {"prompt": [1, 2, 3, 4, 5]},
        {"n": 9, "prompt": ["a"], "use_beam_search": True},
        {"prompt": ["a"] * 9, "prompt_embeds": ["AAAA"]},
        {"n": 9, "use_beam_search": True},
    ],
)
def test_other_requests_stay_whole(fields: dict[str, Any]) -> None:
    request = Request(**fields)
    assert sequence_waves(request, 4) == [request]
    response = respond(request)
    assert join_responses([request], [response]) is response


def test_answers_without_a_seed_keep_none() -> None:
    assert {wave.seed for wave in sequence_waves(Request(n=9), 4)} == {None}


@pytest.mark.parametrize(
    ("request_", "sequences"),
    [
        (Request(), 116),
        (Request(echo=True), 116),
        (Chat(logprobs=False), 116),
        (Request(logprobs=0, max_tokens=500), 116),
        (Chat(logprobs=True, top_logprobs=20, max_tokens=1_000), 116),
        (Chat(logprobs=True, top_logprobs=20, max_tokens=4_000), 41),
        (Chat(logprobs=True, logprob_token_ids=[1] * 20, max_tokens=4_000), 41),
        (Request(logprobs=20), 1),
        (Request(logprobs=20, max_tokens=10**9), 1),
        (Request(prompt_logprobs=0), 1),
        (Request(echo=True, logprobs=0), 1),
        (Chat(echo=True), 1),
    ],
)
def test_log_probabilities_make_waves_smaller(request_: Request, sequences: int) -> None:
    """Those of answers by their memory; those of a prompt since a step computes all of it."""
    assert wave_sequences(request_, WaveLimits(116, 131_072)) == sequences
