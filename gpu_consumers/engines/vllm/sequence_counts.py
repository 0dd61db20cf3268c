"""Counts the tokens that vLLM has generated for a call whose answer is not streamed.

vLLM returns such an answer at its end, so the tokens of an aborted call are only in the states of
its sequences. The states outlive their sequence here until the call ends. Pure but for the context.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from gpu_consumers.engines.engine import EngineAnswer, UsageMeter

_CURRENT: ContextVar["SequenceCounts | None"] = ContextVar("sequence_counts", default=None)


class SequenceCounts:
    """The sequences of one call, by the states that vLLM keeps of them."""

    def __init__(self, *, shares_prompt: bool) -> None:
        """`shares_prompt`: all sequences answer one prompt, which counts once."""
        self._shares_prompt = shares_prompt
        self._states: list[Any] = []

    def add(self, state: Any) -> None:
        """Count a sequence from now on."""
        self._states.append(state)

    def with_usage(self, answer: EngineAnswer) -> EngineAnswer:
        """Return the answer with the usage so far: prompts whole, outputs as generated."""
        prompts: dict[int, int] = {}
        for state in self._states:
            parent = state if state.parent_req is None else state.parent_req
            prompts[0 if self._shares_prompt else id(parent)] = state.prompt_len
        generated = [s.detokenizer.num_output_tokens() for s in self._states if s.detokenizer]
        return msgspec.structs.replace(
            answer, input_tokens=sum(prompts.values()), output_tokens=sum(generated)
        )


@contextmanager
def counted_sequences(meter: UsageMeter | None, *, shares_prompt: bool) -> Iterator[None]:
    """Let `meter` report the usage of the sequences that the block gives to vLLM."""
    if meter is None:
        yield
        return
    counts = SequenceCounts(shares_prompt=shares_prompt)
    meter.with_usage = counts.with_usage
    token = _CURRENT.set(counts)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def observe_sequences(output_processor: Any) -> None:
    """Let each sequence that vLLM adds be counted for the call in whose context it is added.

    vLLM starts tasks in the context of the call. Its ids do not identify a call: a client may
    choose them.
    """
    add_request = output_processor.add_request

    def add_observed(request: Any, *arguments: Any, **named: Any) -> None:
        add_request(request, *arguments, **named)
        counts = _CURRENT.get()
        if counts is not None:
            counts.add(output_processor.request_states[request.request_id])

    output_processor.add_request = add_observed
