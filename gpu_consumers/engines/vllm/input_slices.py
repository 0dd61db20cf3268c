"""Splits a body of many inputs into bodies of few, and joins their answers.

vLLM hands all inputs of a body to its engine in one iteration of the event loop, and they run ahead
of later calls: 2,048 inputs held both for seconds. Slices run one after the other, and calls of
others run in between. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

RERANK: Final = "/v1/rerank"

SLICE_S: Final = 0.2
"""Seconds that a slice of an online call may hold the engine."""

_TOKENS_MIN: Final = 1_024
"""Tokens of the first slices, and of those of a busy engine: a large body still ends in time."""

_SPLIT_FIELDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "/v1/embeddings": (("", "input"),),
    "/v1/classify": (("", "input"),),
    "/v1/score": (
        ("text_1", "text_2"),
        ("queries", "documents"),
        ("queries", "items"),
        ("data_1", "data_2"),
    ),
    RERANK: (("query", "documents"),),
}
"""By endpoint: the field that is split, and the field that is split with it if it is as long."""

_Fields = dict[str, msgspec.Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """Bounds of one slice; a slice has one input at least."""

    inputs: int
    context_tokens: int
    """The tokens of one input at most: the context of the model."""


class SlicePace:
    """How many tokens a slice may have, so that it takes `SLICE_S` of the engine.

    The rate of an engine is measured on its slices. Calls of others make a slice slower: then the
    next slices are smaller. Estimates exceed the real tokens, so most slices take less.
    """

    def __init__(self, tokens_max: int, *, is_constant: bool = False) -> None:
        """`tokens_max` is the most that a slice may ever have, or always has."""
        self._most, self._is_constant = tokens_max, is_constant
        self.tokens_max = tokens_max if is_constant else min(_TOKENS_MIN, tokens_max)
        """The bound of the next slice."""

    def record(self, tokens: int, took_s: float) -> None:
        """Use the tokens and the seconds of a slice that has run."""
        if self._is_constant:
            return
        fitting = int(tokens * SLICE_S / max(took_s, 1e-6))
        if took_s <= SLICE_S:  # a slice of few tokens says little of the rate
            fitting = max(self.tokens_max, min(fitting, 2 * self.tokens_max))
        self.tokens_max = min(max(_TOKENS_MIN, fitting), self._most)


class InputSlices:
    """The slices of one body: bodies of few inputs, or the body itself if it is not split.

    What is not split: few inputs, one prompt of tokens, a conversation, and what vLLM refuses.
    """

    def __init__(self, endpoint: str, body: bytes, limits: SliceLimits, pace: SlicePace) -> None:
        self._body, self._limits, self._pace = body, limits, pace
        self._fields: _Fields = {}
        self._lists: dict[str, list[msgspec.Raw]] = {}
        self._costs: list[int] = []
        self._shared = ""  # the field of a query that all inputs share
        self._next, self._has_next = 0, True
        pairs = _SPLIT_FIELDS.get(endpoint, ())
        if pairs and not (body.count(b",") < limits.inputs and len(body) <= pace.tokens_max):
            try:
                self._read(pairs)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._lists = {}  # vLLM refuses it

    @property
    def has_shared_query(self) -> bool:
        """Whether the inputs of the body share a text, which each slice repeats."""
        return bool(self._shared)

    def next_body(self) -> bytes | None:
        """Return the next slice; None after the last one."""
        if not self._has_next:
            return None
        start = self._next
        end = self._next = self._slice_end(start)
        self._has_next = end < len(self._costs)
        if start == 0 and not self._has_next:
            self._lists = {}  # it is short after all
        if not self._lists:
            return self._body
        lists = {name: inputs[start:end] for name, inputs in self._lists.items()}
        return msgspec.json.encode(self._fields | lists)

    def record(self, tokens: int, took_s: float) -> None:
        """Record that the slice ran; a body that is not split says nothing of slices."""
        if self._lists:
            self._pace.record(tokens, took_s)

    def _slice_end(self, start: int) -> int:
        tokens = 0
        costs = self._costs[start : start + self._limits.inputs]
        for count, cost in enumerate(costs):
            tokens += cost
            if count and tokens > self._pace.tokens_max:
                return start + count
        return start + len(costs)

    def _read(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Find the lists to split, if there are any, and what their elements cost."""
        fields = _FIELDS.decode(self._body)
        first, second = next((pair for pair in pairs if pair[1] in fields), ("", ""))
        if not second:
            return
        inputs = _LIST.decode(fields[second])
        if len(inputs) < 2 or not all(map(_is_input, inputs)):
            return
        lists, shared = {second: inputs}, fields.get(first, msgspec.Raw())
        costs = [self._cost(one) for one in inputs]
        if "pad_prompt_tokens" in fields:  # they are added to short inputs
            costs = [self._limits.context_tokens] * len(inputs)
        if bytes(shared).startswith(b"[") and len(firsts := _LIST.decode(shared)) != 1:
            if len(firsts) != len(inputs):
                return
            lists[first] = firsts
            costs = [cost + self._cost(one) for cost, one in zip(costs, firsts, strict=True)]
        elif first:
            self._shared, of_query = first, self._cost(shared)
            costs = [cost + of_query for cost in costs]
        if "top_n" in fields:  # of all documents, not of each slice
            fields["top_n"] = msgspec.Raw(b"0")
        self._fields, self._lists, self._costs = fields, lists, costs

    def _cost(self, value: msgspec.Raw) -> int:
        """Return the tokens of an input at most: a token has a byte at least; images have many."""
        text, tokens_max = bytes(value), self._limits.context_tokens
        if text[:1] == b'"':
            return min(len(text), tokens_max)
        return min(text.count(b",") + 1, tokens_max) if text[:1] == b"[" else tokens_max


def _is_input(value: msgspec.Raw) -> bool:
    """Whether an element is a text, a list of tokens or, to be scored, an object with content."""
    text = bytes(value)
    return text[:1] in (b'"', b"[") or (text[:1] == b"{" and b'"role"' not in text)


def with_short_input(body: bytes) -> bytes | None:
    """Return a body with one short text as its `input`; None unless `input` holds texts or tokens.

    vLLM's union of the models of a body checks its other fields with it. `input` itself needs only
    the model of texts and tokens: the union tries all models, and 369,000 tokens took 5 s and
    2.4 GiB, since each token is an error of four other models.
    """
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    text = bytes(fields.get("input", b""))
    if text[:64].lstrip(b"[ \t\r\n")[:1] in (b"", b"{"):
        return None
    return msgspec.json.encode(fields | {"input": msgspec.Raw(b'"a"')})


class _Answer(msgspec.Struct):
    data: list[_Fields] | None = None
    results: list[_Fields] | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_TOP_N: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(
    msgspec.defstruct("_TopN", [("top_n", int, 0)])
)


class SlicedAnswer:
    """The answers to the slices of one body so far."""

    def __init__(self, endpoint: str, body: bytes, bytes_max: int) -> None:
        self._endpoint, self._body, self._bytes_max = endpoint, body, bytes_max
        self._rows: list[_Fields] = []
        self._answers: list[EngineAnswer] = []
        self._bytes = self._repeated_tokens = 0

    def add(self, answer: EngineAnswer, query_tokens: int = 0) -> EngineAnswer | None:
        """Add the answer to the next slice; return the answer to the body if it fails with this.

        `query_tokens` of the answer's tokens are of the query that all slices repeat; the answer
        to the body counts them once, as vLLM does for a whole body.
        """
        if answer.is_error:
            return answer
        self._bytes += len(answer.body)
        if self._bytes > self._bytes_max:
            return too_large_answer(self._bytes_max)
        if self._answers:
            self._repeated_tokens += query_tokens
        self._answers.append(answer)
        return None

    def join(self) -> EngineAnswer:
        """Return the answer to the body; there is one slice at least."""
        if len(self._answers) == 1:
            return self._answers[0]
        for answer in self._answers:
            self._add_rows(answer.body)
        fields: dict[str, Any] = _FIELDS.decode(self._answers[-1].body)
        if self._endpoint == RERANK:
            fields["results"] = _ranked(self._rows, _TOP_N.decode(self._body).top_n)
        else:
            fields["data"] = self._rows
        tokens = sum(answer.input_tokens for answer in self._answers) - self._repeated_tokens
        usage = msgspec.json.decode(fields["usage"])
        fields["usage"] = usage | {"prompt_tokens": tokens, "total_tokens": tokens}
        return EngineAnswer(200, msgspec.json.encode(fields), tokens)

    def _add_rows(self, body: bytes) -> None:
        """Add the rows of one answer; their vectors are not decoded."""
        answer = _ANSWER.decode(body)
        offset = len(self._rows)
        for position, row in enumerate(answer.results or answer.data or ()):
            within = msgspec.json.decode(row["index"]) if answer.results else position
            self._rows.append(row | {"index": msgspec.Raw(b"%d" % (offset + within))})


def _ranked(rows: Sequence[_Fields], top_n: int) -> Sequence[_Fields]:
    """Return the rows by falling score, the first `top_n` of them unless it is 0."""

    def score(row: _Fields) -> float:
        return float(msgspec.json.decode(row["relevance_score"]))

    ranked = sorted(rows, key=score, reverse=True)
    return ranked[:top_n] if top_n else ranked


def too_large_answer(bytes_max: int, advice: str = "Send fewer inputs.") -> EngineAnswer:
    """Return the answer to a body whose answer would be too large."""
    message = f"The answer would have more than {bytes_max} bytes. {advice}"
    return error_answer(400, message, code="answer_too_large")
