"""Collects what the order of a file follows from: prefixes of its prompts, and token estimates.

`FirstPrefixes` tells at a third of the cost whether an order can save enough; most files have
nothing to share, and are read once.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.bodies.token_estimates import BYTES_PER_TOKEN, CONTEXT_TOKENS_MAX, given_count
from jobs.ordering.item_order import (
    FILE_BYTES_MAX,
    ITEMS_MIN,
    SAVED_SHARE_MIN,
    FileItems,
    Ints,
    ItemOrder,
    find_order,
)

PREFIX_CHARS: Final = (256, 512, 1024, 2048, 4096, 8192)
"""Lengths of the prefixes that are compared; 256 characters are about four blocks of vLLM."""

ITEMS_MAX: Final = 4_000_000
"""Items of an ordered file at most; the memory of more is not taken."""

ORDERED_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints whose engines reuse the cached keys and values of a prefix."""

_PREFIX_TOKENS: Final = tuple(chars // BYTES_PER_TOKEN for chars in PREFIX_CHARS)
_NONE: Final = (0,) * len(PREFIX_CHARS)
_UINT32_MAX: Final = 2**32 - 1
_LINE_OVERHEAD: Final = 64  # the least bytes of a line that are not part of its prompt


class FirstPrefixes:
    """The shortest prefix of each item of a file, in 12 bytes each: a bound on what can be saved.

    Items share longer prefixes only if they share this one.
    """

    def __init__(self) -> None:
        self._hashes, self._sizes = array("q"), array("I")

    def add(self, line_bytes: int, body: Mapping[str, Any], salt: int = 0) -> None:
        """Add the next item, as `PromptPrefixes.add`."""
        self._sizes.append(line_bytes if line_bytes < _UINT32_MAX else _UINT32_MAX)
        if line_bytes < _HASHED_BYTES_MIN:
            self._hashes.append(0)
            return
        text = _first_text(body)
        self._hashes.append(hash(text) ^ salt if len(text) == PREFIX_CHARS[0] else 0)

    def may_share(self) -> bool:
        """Return False if no order saves `SAVED_SHARE_MIN` of the tokens of the prompts."""
        sizes = _uint32(self._sizes).astype(np.int64)
        if not ITEMS_MIN <= len(sizes) <= ITEMS_MAX or sizes.sum() > FILE_BYTES_MAX:
            return False
        prompts = np.minimum(sizes // BYTES_PER_TOKEN, CONTEXT_TOKENS_MAX)
        hashes = np.frombuffer(self._hashes, dtype=np.int64)
        is_hashed = hashes != 0
        saved = _savable_tokens(hashes[is_hashed], sizes[is_hashed])
        return saved >= SAVED_SHARE_MIN * max(1, int(prompts.sum()))


def _savable_tokens(hashes: Ints, sizes: Ints) -> int:
    """Return the most prompt tokens that an order saves: in a group all but its longest prompt."""
    if not len(hashes):
        return 0
    order = np.argsort(hashes)
    hashes, sizes = hashes[order], sizes[order]
    levels = np.searchsorted(PREFIX_CHARS, sizes - _LINE_OVERHEAD, side="right")
    tokens = np.array([0, *_PREFIX_TOKENS], dtype=np.int64)[levels]
    starts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
    return int(tokens.sum() - np.maximum.reduceat(tokens, starts).sum())


class PromptPrefixes:
    """The prefixes of the items of one file, in 36 bytes each. They never leave this process.

    Prefixes are compared by Python's hash, which is keyed per process (PEP 456), cut to 32 bits:
    equal hashes of different prefixes cost a few cached tokens.
    """

    def __init__(self) -> None:
        self._hashes, self._sizes = array("I"), array("I")
        self._prompts, self._outputs = array("I"), array("I")
        self._is_full = False

    def add(self, line_bytes: int, body: Mapping[str, Any], salt: int = 0) -> None:
        """Add the next item, with the bytes of its line. Items of equal `salt` share prefixes."""
        if len(self._sizes) >= ITEMS_MAX:
            self._is_full = True
            return
        self._sizes.append(min(line_bytes, _UINT32_MAX))
        self._prompts.append(min(line_bytes // BYTES_PER_TOKEN, CONTEXT_TOKENS_MAX))
        self._outputs.append(predicted_output(body))
        self._hashes.extend(_hashes(body, salt) if line_bytes >= _HASHED_BYTES_MIN else _NONE)

    def find_order(self) -> ItemOrder | None:
        """Return the order of the items; None if that of the file is as good."""
        if self._is_full or not self._sizes:
            return None
        hashes = np.frombuffer(self._hashes, dtype=np.uint32).reshape(-1, len(PREFIX_CHARS))
        items = FileItems(hashes, *map(_uint32, (self._prompts, self._outputs, self._sizes)))
        return find_order(items, _PREFIX_TOKENS)


_HASHED_BYTES_MIN: Final = PREFIX_CHARS[0] + _LINE_OVERHEAD


def _uint32(values: "array[int]") -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(values, dtype=np.uint32)


def _first_text(body: Mapping[str, Any]) -> str:
    """Return the shortest prefix of the prompt, or all of a shorter prompt."""
    messages = body.get("messages")
    if type(messages) is list and messages and not body.get("tools"):
        first = messages[0]
        if type(first) is dict and type(content := first.get("content")) is str:
            text = f"\n{first.get('role')}:{content[: PREFIX_CHARS[0]]}"
            if len(text) >= PREFIX_CHARS[0]:
                return text[: PREFIX_CHARS[0]]
    return prompt_start(body)[: PREFIX_CHARS[0]]


def _hashes(body: Mapping[str, Any], salt: int) -> Sequence[int]:
    text = prompt_start(body)
    length = len(text)
    if length < PREFIX_CHARS[0]:
        return _NONE
    return [
        (hash(text[:chars]) ^ salt) & _UINT32_MAX or 1 if chars <= length else 0
        for chars in PREFIX_CHARS
    ]


def predicted_output(body: Mapping[str, Any]) -> int:
    """Return the output tokens to order an item by, before the job has results.

    Half of its limit; without one, the prior. Only the rank counts.
    """
    limit = body.get("max_completion_tokens")
    if limit is None:
        limit = body.get("max_tokens")
    named, choices = given_count(limit), given_count(body.get("n"))
    tokens = named / 2 if named else OUTPUT_TOKENS_PRIOR
    return int(min(tokens * (choices or 1), CONTEXT_TOKENS_MAX))


def prompt_start(body: Mapping[str, Any]) -> str:
    """Return the start of the text that the engine sees, at least as far as it is compared.

    Tools come first, as in most chat templates. The text ends at the first image or other part
    without text, since its bytes do not show whether the engine sees the same.
    """
    messages = body.get("messages")
    if type(messages) is not list:
        prompt = body.get("prompt")
        return prompt if type(prompt) is str else ""
    start = _tools_start(body.get("tools"))
    for message in messages:
        if type(message) is not dict:
            break
        text, is_complete = _message_text(message)
        start += f"\n{message.get('role')}:{text}"
        if not is_complete or len(start) >= PREFIX_CHARS[-1]:
            break
    return start


def _tools_start(tools: object) -> str:
    """Return the start of the tools as text: the text of a megabyte of them costs 20 ms a line."""
    if type(tools) is not list:
        return repr(tools) if tools else ""
    texts: list[str] = []
    chars = 0
    for tool in tools:
        texts.append(repr(tool))
        chars += len(texts[-1])
        if chars >= PREFIX_CHARS[-1]:
            break
    return f"[{', '.join(texts)}]"


def _message_text(message: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the text of a message, and whether it has no part without text."""
    content = message.get("content")
    if type(content) is str:
        return content, True
    if type(content) is not list:
        return repr(message), True
    texts: list[str] = []
    for part in content:
        text = part.get("text") if type(part) is dict else None
        if type(text) is not str:
            return "".join(texts), False
        texts.append(text)
    return "".join(texts), True
