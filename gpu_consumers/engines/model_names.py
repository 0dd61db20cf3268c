"""The field `model` of bodies and answers: clients choose how to write it, engines have one name.

A body may name an alias, `name@version` or an adapter. Millrace has resolved it, so engines take no
notice of it, and answers repeat it. Pure.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

WriteModel = Callable[[bytes], bytes]
"""Returns an answer, or an event of a stream, with the field `model` replaced."""

# Inside a JSON string its quotes would be escaped, so the first match is the field of the object.
_FIELD: Final = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
_HEAD_BYTES: Final = 1024
"""Engines write the field before anything that depends on the request."""


class _Body(msgspec.Struct):
    model: str | None = None


_BODY: Final = msgspec.json.Decoder(_Body)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def other_model(body: bytes, served: str) -> str | None:
    """Return the model that a body names, if it is not `served`.

    None for a body that names none, or that the engine will refuse.
    """
    try:
        model = _BODY.decode(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if model == served else model


def with_model(body: bytes, model: str) -> bytes:
    """Return a JSON object with its field `model` replaced, every other field as it was."""
    fields = _FIELDS.decode(body)
    return msgspec.json.encode(fields | {"model": msgspec.Raw(msgspec.json.encode(model))})


@lru_cache(maxsize=1024)
def model_writer(model: str) -> WriteModel:
    """Return the function that writes `model` into the answers to a body that named it."""
    field = b'"model":' + msgspec.json.encode(model)

    def write_model(payload: bytes) -> bytes:
        found = _FIELD.search(payload, 0, _HEAD_BYTES)
        if found is None:
            return payload
        return payload[: found.start()] + field + payload[found.end() :]

    return write_model
