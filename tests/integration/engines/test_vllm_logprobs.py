"""Goal: log probabilities kept as arrays and encoded in pieces have the bytes that vLLM makes.

In a process of its own, which loads vLLM without an engine.
"""

import os
import subprocess
import sys

import msgspec
import pytest

PROGRAM = r"""
import json, sys
from types import SimpleNamespace as Space

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
    # Tokens 7, 8 and 9 are the bytes of one character.
    def decode(self, ids):
        ids = [ids] if isinstance(ids, int) else ids
        text = b"".join(TEXTS.get(one, b"t%d" % one) for one in ids)
        return text.decode(errors="replace")

    def convert_ids_to_tokens(self, ids):
        return [self.decode([one]) for one in ids]

def processor(params, detokenize):
    request = Space(sampling_params=Space(flat_logprobs=False, **params))
    tokenizer = Tokenizer() if detokenize else None
    return output_processor.LogprobsProcessor.from_new_request(tokenizer, request)

def fill(one, seed, width, tokens):
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
    return ids[:, 0].tolist()

serving = Space(
    return_tokens_as_token_ids=False, _get_decoded_token=GenerateBaseServing._get_decoded_token
)
serving._get_top_logprobs = lambda *a, **o: OpenAIServingChat._get_top_logprobs(serving, *a, **o)
POSITIONS = TypeAdapter(CompletionResponseChoice.model_fields["prompt_logprobs"].annotation)

def built(params, detokenize, width, top):
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

cases = [
    ({"num_logprobs": k, "prompt_logprobs": k}, detokenize, width, k)
    for k, width in ((20, 21), (0, 21), (3, 4), (-1, 12))
    for detokenize in (True, False)
]
own = [built(*case) for case in cases]
keep_logprobs_as_arrays()
json.dump([own, [built(*case) for case in cases]], sys.stdout)
"""


@pytest.mark.timeout(300)
def test_arrays_decode_to_what_vllm_keeps() -> None:
    """Candidates beyond the request's, infinite numbers, and a character of several tokens."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=kept | {"VLLM_LOGGING_STREAM": "ext://sys.stderr"},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()[-4000:]
    own, arrays = msgspec.json.decode(run.stdout)
    assert len(own) == 8
    assert arrays == own
    assert "€" in own[0][0]
