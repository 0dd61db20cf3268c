"""Builds log probabilities as vLLM keeps them and as arrays, and prints both as JSON."""

import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace as Space
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from vllm.entrypoints.generate.base.serving import GenerateBaseServing, clamp_prompt_logprobs
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionResponseChoice
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.v1.engine import output_processor
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from gpu_consumers.engines.vllm.logprob_arrays import keep_logprobs_as_arrays

TEXTS = {7: b"\xe2", 8: b"\x82", 9: b"\xac", 10: b" word", 11: b'"quoted"', 12: b""}


class Tokenizer:
    """Tokens 7, 8 and 9 are the bytes of one character."""

    def decode(self, ids: int | Sequence[int]) -> str:
        ids = [ids] if isinstance(ids, int) else ids
        text = b"".join(TEXTS.get(one, b"t%d" % one) for one in ids)
        return text.decode(errors="replace")

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.decode([one]) for one in ids]


def processor(params: dict[str, int], detokenize: bool) -> Any:
    request = Space(sampling_params=Space(flat_logprobs=False, **params))
    tokenizer = Tokenizer() if detokenize else None
    return output_processor.LogprobsProcessor.from_new_request(tokenizer, request)


def fill(one: Any, seed: int, width: int, tokens: int) -> list[int]:
    dice = np.random.default_rng(seed)
    ids = dice.integers(0, 40, (tokens, width))
    ids[2:5, 0] = 7, 8, 9
    numbers = -dice.exponential(5, (tokens, width)).astype(np.float32)
    numbers[1, 1:2], numbers[3, :1] = -np.inf, 0
    ranks = dice.integers(1, 99, tokens)
    tensors = [torch.from_numpy(array) for array in (ids, numbers, ranks)]
    one._update_prompt_logprobs(LogprobsTensors(*tensors))
    for at in range(tokens):
        rows = (array[at : at + 1] for array in (ids.astype(np.int32), numbers, ranks))
        one._update_sample_logprobs(LogprobsLists(*rows))
    return [int(one) for one in ids[:, 0]]


serving: Any = Space(
    return_tokens_as_token_ids=False, _get_decoded_token=GenerateBaseServing._get_decoded_token
)
serving._get_top_logprobs = lambda *a, **o: OpenAIServingChat._get_top_logprobs(serving, *a, **o)
positions: Any = CompletionResponseChoice.model_fields["prompt_logprobs"].annotation
POSITIONS: TypeAdapter[Any] = TypeAdapter(positions)


def built(params: dict[str, int], detokenize: bool, width: int, top: int) -> list[Any]:
    one = processor(params, detokenize)
    token_ids = fill(one, width, width, 30)
    options = {"tokenizer": Tokenizer(), "num_output_top_logprobs": top}
    chat = OpenAIServingChat._create_chat_logprobs(serving, token_ids, one.logprobs, **options)
    echo = [*clamp_prompt_logprobs([*one.prompt_logprobs]), *one.logprobs]
    completion = OpenAIServingCompletion._create_completion_logprobs(
        serving, [5, *token_ids, *token_ids], echo, **options
    )
    return [
        chat.model_dump_json(),
        completion.model_dump_json(),
        POSITIONS.dump_json(clamp_prompt_logprobs([*one.prompt_logprobs])).decode(),
        repr(one.logprobs[-3:]),
        repr(one.logprobs[:0]),
        repr(one.logprobs[-1]),
        one.cumulative_logprob,
    ]


CASES = [
    ({"num_logprobs": k, "prompt_logprobs": k}, detokenize, width, k)
    for k, width in ((20, 21), (0, 21), (3, 4), (-1, 12))
    for detokenize in (True, False)
]

if __name__ == "__main__":
    own = [built(*case) for case in CASES]
    keep_logprobs_as_arrays()
    json.dump([own, [built(*case) for case in CASES]], sys.stdout)
