"""Splits a request for many sequences into waves, and joins their responses.

vLLM runs a bounded number of sequences at once, and no other starts until one of them ends: a body
of as many long answers would stop the calls of all others for its whole time. Waves run one after
the other and leave places for others. Requests and responses are vLLM's own. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_consumers.engines.engine_failures import prompt_count

_LOGPROBS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory of the log probabilities of one wave, which are kept until all its sequences end."""
_POSITION_BYTES: Final = 150
_CANDIDATE_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class WaveLimits:
    """Bounds of one wave."""

    sequences: int
    context_tokens: int
    """The tokens of one sequence at most: the context of the model."""


def wave_sequences(request: Any, limits: WaveLimits) -> int:
    """Return how many sequences of a request may run at once.

    One, if it asks for the log probabilities of its prompt: the engine computes those of all
    prompts of a step together, and no other call runs meanwhile. As many as fit the memory, if it
    asks for those of its answers.
    """
    if _has_prompt_logprobs(request):
        return 1
    if request.logprobs is None or request.logprobs is False:
        return limits.sequences
    top = getattr(request, "top_logprobs", 0) or 0  # a completion has none
    tokens = getattr(request, "max_completion_tokens", None) or request.max_tokens
    tokens = min(tokens or limits.context_tokens, limits.context_tokens)
    candidates = 1 + max(int(request.logprobs), top, len(request.logprob_token_ids or ()))
    sequence_bytes = tokens * (_POSITION_BYTES + candidates * _CANDIDATE_BYTES)
    return max(1, min(limits.sequences, _LOGPROBS_BYTES_MAX // sequence_bytes))


def _has_prompt_logprobs(request: Any) -> bool:
    """Whether vLLM computes log probabilities of the prompt: when asked, and for an echo."""
    if request.prompt_logprobs is not None:
        return True
    of_echo = request.top_logprobs if hasattr(request, "top_logprobs") else request.logprobs
    return request.echo and of_echo is not None


def sequence_waves(request: Any, sequences_max: int) -> list[Any]:
    """Return requests of at most `sequences_max` sequences; `request` alone if it is not split.

    Not split are few sequences, embedded prompts, and the beams of one prompt.
    """
    prompt: Any = getattr(request, "prompt", None)  # a chat has none
    n = request.n or 1
    count = prompt_count(prompt)
    if count * n <= sequences_max or getattr(request, "prompt_embeds", None) is not None:
        return [request]
    if count == 1:
        return [*_answer_waves(request, n, sequences_max)]
    step = max(1, sequences_max // n)
    parts = [
        request.model_copy(update={"prompt": prompt[at : at + step]})
        for at in range(0, count, step)
    ]
    if n <= sequences_max:
        return parts
    return [wave for part in parts for wave in _answer_waves(part, n, sequences_max)]


def _answer_waves(request: Any, n: int, sequences_max: int) -> Iterator[Any]:
    """Yield requests for some of the answers to one prompt each."""
    if request.use_beam_search:
        yield request
        return
    for at in range(0, n, sequences_max):
        fields: dict[str, Any] = {"n": min(sequences_max, n - at)}
        if at and getattr(request, "prompt", None) is None:
            fields["prompt_logprobs"] = None  # a chat has them once, from its first wave
        if request.seed is not None:
            fields["seed"] = request.seed + at  # vLLM adds the index of the answer
        yield request.model_copy(update=fields)


def join_responses(waves: Sequence[Any], responses: Sequence[Any]) -> Any:
    """Return the response to a request from those to its waves; the first one is changed.

    A prompt that several waves share is counted once.
    """
    whole = responses[0]
    if len(responses) == 1:
        return whole
    usage, prompt = whole.usage, getattr(waves[0], "prompt", None)
    for wave, response in zip(waves[1:], responses[1:], strict=True):
        offset = len(whole.choices)
        for choice in response.choices:
            choice.index += offset
        whole.choices += response.choices
        usage.completion_tokens += response.usage.completion_tokens
        before, prompt = prompt, getattr(wave, "prompt", None)
        if prompt is not before:
            usage.prompt_tokens += response.usage.prompt_tokens
            # vLLM reports the cached tokens of the last prompt.
            usage.prompt_tokens_details = response.usage.prompt_tokens_details
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
    return whole
