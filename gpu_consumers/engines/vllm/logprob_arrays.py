"""Keeps the log probabilities of a sequence as arrays, and decodes a position when it is read.

vLLM builds one Python object for each candidate of each position as soon as the engine reports it:
21 objects and texts a token, and all of those of a prompt in one iteration of the event loop.
Arrays need about 20 times less memory, and the reader of the positions decides how many it decodes
at once.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Self, overload

import numpy as np
from vllm.logprobs import LogprobsOnePosition, append_logprobs_for_next_position
from vllm.tokenizers.detokenizer_utils import convert_ids_list_to_tokens
from vllm.v1.engine import output_processor
from vllm.v1.engine.logprobs import NONES, LogprobsProcessor

_CONTEXT: Final = 4
"""Positions before a token that vLLM reads to complete a character of several tokens."""

Row = tuple[list[int], list[float], int]
"""Token ids and log probabilities of one position, the chosen token first, and its rank."""


class ArrayLogprobs(Sequence[LogprobsOnePosition | None]):
    """The positions of one sequence. Reading one builds the objects that vLLM would have kept."""

    skipped = 0
    """Positions at the start that have no log probabilities."""

    def __init__(self, tokenizer: Any, count: int) -> None:
        """`count` is the request's number of candidates beside the chosen token; -1 means all."""
        self._count = count
        self._decoder = LogprobsProcessor(tokenizer, None, None, None, None, None)

    @property
    def _columns(self) -> slice:
        """Columns of the request; the arrays of a step are as wide as its widest request."""
        return slice(None if self._count == -1 else self._count + 1)

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[LogprobsOnePosition | None]: ...

    def __getitem__(self, index: int | slice) -> Any:
        positions = range(len(self))[index]
        if isinstance(positions, int):
            return self._decoded(positions)
        return [self._decoded(position) for position in positions]

    def _decoded(self, position: int) -> LogprobsOnePosition | None:
        row = position - self.skipped
        if row < 0:
            return None
        token_ids, logprobs, rank = self._row(row)
        texts: Any = NONES
        if (tokenizer := self._decoder.tokenizer) is not None:
            first = max(0, max(0, position - _CONTEXT) - self.skipped)
            context = [self._chosen_id(before) for before in range(first, row)]
            texts = convert_ids_list_to_tokens(tokenizer, token_ids)
            texts = self._decoder._verify_tokens(texts, token_ids, context)  # noqa: SLF001
        decoded: list[LogprobsOnePosition] = []
        append_logprobs_for_next_position(decoded, token_ids, logprobs, texts, rank, self._count)
        return decoded[0]

    @abstractmethod
    def _row(self, row: int) -> Row:
        """Return the arrays of one position as lists."""

    @abstractmethod
    def _chosen_id(self, row: int) -> int:
        """Return the token at one position."""


class SampleLogprobs(ArrayLogprobs):
    """The log probabilities of generated tokens."""

    def __init__(self, tokenizer: Any, count: int) -> None:
        super().__init__(tokenizer, count)
        # Bytes are no work for the garbage collector, and hold no message of the engine.
        self._token_ids: list[bytes] = []
        self._logprobs: list[bytes] = []
        self._ranks: list[int] = []
        self._types: tuple[np.dtype[Any], np.dtype[Any]] = (np.dtype("i4"), np.dtype("f4"))

    def __len__(self) -> int:
        return len(self._ranks)

    def append(self, token_ids: np.ndarray, logprobs: np.ndarray, rank: int) -> None:
        """Add a position."""
        self._types = token_ids.dtype, logprobs.dtype
        self._token_ids.append(token_ids[self._columns].tobytes())
        self._logprobs.append(logprobs[self._columns].tobytes())
        self._ranks.append(rank)

    def _row(self, row: int) -> Row:
        id_type, logprob_type = self._types
        token_ids = np.frombuffer(self._token_ids[row], id_type).tolist()
        return (
            token_ids,
            np.frombuffer(self._logprobs[row], logprob_type).tolist(),
            self._ranks[row],
        )

    def _chosen_id(self, row: int) -> int:
        return int(np.frombuffer(self._token_ids[row], self._types[0], count=1)[0])


class PromptLogprobs(ArrayLogprobs):
    """The log probabilities of a prompt, whose first token has none."""

    skipped = 1

    def __init__(self, tokenizer: Any, count: int) -> None:
        super().__init__(tokenizer, count)
        self._token_ids = np.empty((0, 0), np.int64)
        self._logprobs = np.empty((0, 0), np.float32)
        self._ranks = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.skipped + len(self._ranks)

    def set_all(self, token_ids: Any, logprobs: Any, ranks: Any) -> None:
        """Set all positions from tensors of the engine, which reports a prompt once."""
        self._token_ids = token_ids.numpy()[:, self._columns].copy()
        self._logprobs = logprobs.float().numpy()[:, self._columns].copy()
        self._ranks = ranks.numpy().copy()

    def _row(self, row: int) -> Row:
        return self._token_ids[row].tolist(), self._logprobs[row].tolist(), int(self._ranks[row])

    def _chosen_id(self, row: int) -> int:
        return int(self._token_ids[row, 0])


class ArrayLogprobsProcessor(LogprobsProcessor):  # type: ignore[misc] # vLLM has no types here
    """Stores the log probabilities of one request as arrays."""

    @classmethod
    def from_new_request(cls, tokenizer: Any, request: Any) -> Self:
        """Return the processor of a request."""
        processor: Self = super().from_new_request(tokenizer, request)
        if processor.num_logprobs is not None:
            processor.logprobs = SampleLogprobs(tokenizer, processor.num_logprobs)
        if processor.num_prompt_logprobs is not None:
            processor.prompt_logprobs = PromptLogprobs(tokenizer, processor.num_prompt_logprobs)
        return processor

    def _update_sample_logprobs(self, logprobs_lists: Any) -> None:
        token_ids, logprobs, ranks, _ = logprobs_lists
        for one_ids, one_logprobs, rank in zip(token_ids, logprobs, ranks, strict=False):
            self.cumulative_logprob += float(one_logprobs[0])
            self.logprobs.append(one_ids, one_logprobs, int(rank))

    def _update_prompt_logprobs(self, prompt_logprobs_tensors: Any) -> None:
        token_ids, logprobs, ranks, *_ = prompt_logprobs_tensors
        self.prompt_logprobs.set_all(token_ids, logprobs, ranks)


def keep_logprobs_as_arrays() -> None:
    """Let vLLM in this process store log probabilities as arrays; answers stay the same."""
    output_processor.LogprobsProcessor = ArrayLogprobsProcessor
