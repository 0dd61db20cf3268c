"""Splits a body of many inputs into bodies of few, and joins their answers.

vLLM hands all inputs of a body to its engine in one iteration of the event loop, and they run ahead
of later calls: 2,048 inputs held both for seconds. Slices run one after the other, and calls of
others run in between. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

RERANK: Final = "/v1/rerank"

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


def split_inputs(endpoint: str, body: bytes, inputs_max: int) -> list[bytes]:
    """Return bodies of at most `inputs_max` inputs; only `body` itself if it is not split.

    What is not split: fewer inputs, one prompt of tokens, a conversation, and what vLLM refuses.
    """
    pairs = _SPLIT_FIELDS.get(endpoint, ())
    if not pairs or body.count(b",") < inputs_max:
        return [body]
    try:
        fields = _FIELDS.decode(body)
        for first, second in pairs:
            if second in fields:
                lists = _lists(fields, first, second, inputs_max)
                return _slices(fields, lists, inputs_max) if lists else [body]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return [body]


def _lists(
    fields: _Fields, first: str, second: str, inputs_max: int
) -> dict[str, list[msgspec.Raw]]:
    """Return the lists to split, or nothing."""
    inputs = _LIST.decode(fields[second])
    if len(inputs) <= inputs_max or not all(map(_is_input, inputs)):
        return {}
    found = {second: inputs}
    if bytes(fields.get(first, b"")).startswith(b"["):
        firsts = _LIST.decode(fields[first])
        if len(firsts) == len(inputs):
            found[first] = firsts
        elif len(firsts) != 1:
            return {}
    return found


def _is_input(value: msgspec.Raw) -> bool:
    """Whether an element is a text, a list of tokens or, to be scored, an object with content."""
    text = bytes(value)
    return text[:1] in (b'"', b"[") or (text[:1] == b"{" and b'"role"' not in text)


def _slices(
    fields: _Fields, lists: Mapping[str, list[msgspec.Raw]], inputs_max: int
) -> list[bytes]:
    count = len(next(iter(lists.values())))
    if "top_n" in fields:  # of all documents, not of each slice
        fields = fields | {"top_n": msgspec.Raw(b"0")}
    return [
        msgspec.json.encode(
            {**fields, **{name: whole[at : at + inputs_max] for name, whole in lists.items()}}
        )
        for at in range(0, count, inputs_max)
    ]


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
        self._bytes = 0

    def add(self, answer: EngineAnswer) -> EngineAnswer | None:
        """Add the answer to the next slice; return the answer to the body if it fails with this."""
        if answer.is_error:
            return answer
        self._bytes += len(answer.body)
        if self._bytes > self._bytes_max:
            return too_large_answer(self._bytes_max)
        self._answers.append(answer)
        return None

    def join(self) -> EngineAnswer:
        """Return the answer to the body; there are two slices at least."""
        for answer in self._answers:
            self._add_rows(answer.body)
        fields: dict[str, Any] = _FIELDS.decode(self._answers[-1].body)
        if self._endpoint == RERANK:
            fields["results"] = _ranked(self._rows, _TOP_N.decode(self._body).top_n)
        else:
            fields["data"] = self._rows
        tokens = sum(answer.input_tokens for answer in self._answers)
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


def too_large_answer(bytes_max: int) -> EngineAnswer:
    """Return the answer to a body whose answer would be too large."""
    message = f"The answer would have more than {bytes_max} bytes. Send fewer inputs."
    return error_answer(400, message, code="answer_too_large")
