"""Splits a request for many sequences into waves, and joins their responses.

vLLM runs a bounded number of sequences at once, and no other starts until one of them ends: a body
of as many long answers would stop the calls of all others for its whole time. Waves run one after
the other and leave places for others. Requests and responses are vLLM's own. Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gpu_consumers.engines.engine_failures import prompt_count


def sequence_waves(request: Any, sequences_max: int) -> list[Any]:
    """Return requests of at most `sequences_max` sequences; `request` alone if it is not split.

    Not split are few sequences, several prompts with more answers each than the limit, embedded
    prompts, and the beams of one prompt.
    """
    prompt: Any = getattr(request, "prompt", None)  # a chat has none
    n = request.n or 1
    count = prompt_count(prompt)
    if count * n <= sequences_max or getattr(request, "prompt_embeds", None) is not None:
        return [request]
    if n <= sequences_max:
        step = sequences_max // n
        return [
            request.model_copy(update={"prompt": prompt[at : at + step]})
            for at in range(0, count, step)
        ]
    return [*_answer_waves(request, n, sequences_max)] if count == 1 else [request]


def _answer_waves(request: Any, n: int, sequences_max: int) -> Iterator[Any]:
    """Yield requests for some of the answers to one prompt each."""
    if request.use_beam_search:
        yield request
        return
    for at in range(0, n, sequences_max):
        fields = {"n": min(sequences_max, n - at)}
        if request.seed is not None:
            fields["seed"] = request.seed + at  # vLLM adds the index of the answer
        yield request.model_copy(update=fields)


def join_responses(request: Any, responses: Sequence[Any]) -> Any:
    """Return the response to a request from those to its waves; the first one is changed.

    A prompt that all waves share is counted once.
    """
    whole = responses[0]
    if len(responses) == 1:
        return whole
    have_one_prompt = prompt_count(getattr(request, "prompt", None)) == 1
    usage = whole.usage
    for response in responses[1:]:
        offset = len(whole.choices)
        for choice in response.choices:
            choice.index += offset
        whole.choices += response.choices
        usage.completion_tokens += response.usage.completion_tokens
        if not have_one_prompt:
            usage.prompt_tokens += response.usage.prompt_tokens
            # vLLM reports the cached tokens of the last prompt.
            usage.prompt_tokens_details = response.usage.prompt_tokens_details
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
    return whole
