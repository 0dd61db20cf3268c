"""Lowers what a request body asks for: the limit of its output, and its model. Pure.

All other fields keep their value, byte for byte.
"""

from typing import Final

import msgspec

CAPPED_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints that generate text. The vectors and scores of another model cannot be compared with
those of the requested one, so the others are never degraded."""

_COMPLETION_TOKENS: Final = 16  # of a completion without a limit: the default of the OpenAI API
_NULL: Final = b"null"

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUMBER: Final = msgspec.json.Decoder(int, strict=False)  # may be a text, as vLLM reads it


def with_output_cap(endpoint: str, body: bytes, cap: int) -> bytes | None:
    """Return the body with each sequence limited to `cap` tokens.

    None: its limit is not above `cap`, or the engine will refuse it. A chat without a limit gets
    `max_completion_tokens`. `min_tokens` of vLLM is lowered, too: it may not be above the limit.
    """
    if endpoint not in CAPPED_ENDPOINTS:
        return None
    is_chat = endpoint == "/v1/chat/completions"
    names = ("max_completion_tokens", "max_tokens") if is_chat else ("max_tokens",)
    try:
        fields = _OBJECT.decode(body)
        limits = {name: _number(fields, name) for name in (*names, "min_tokens")}
    except msgspec.MsgspecError:
        return None
    lowered = [name for name, limit in limits.items() if limit is not None and limit > cap]
    if all(limits[name] is None for name in names) and (is_chat or cap < _COMPLETION_TOKENS):
        lowered.append(names[0])
    if not set(lowered) & set(names):
        return None
    number = msgspec.Raw(b"%d" % cap)
    return msgspec.json.encode(fields | dict.fromkeys(lowered, number))


def with_model(body: bytes, model: str) -> bytes:
    """Return the body with another model. Raises msgspec.MsgspecError for a body without fields."""
    fields = _OBJECT.decode(body)
    return msgspec.json.encode(fields | {"model": msgspec.Raw(msgspec.json.encode(model))})


def _number(fields: dict[str, msgspec.Raw], name: str) -> int | None:
    """Return a limit; None if it is absent or null. Raises msgspec.MsgspecError."""
    found = fields.get(name)
    return None if found is None or bytes(found).strip() == _NULL else _NUMBER.decode(found)
