"""The model version that answered, as `system_fingerprint` in answers and in every chunk.

Engines state it in some chunks or none, each in its own way. What they state is replaced, so that
one string means one thing: that of the header `x-millrace-model-version`.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

Stamp = Callable[[bytes], bytes]

_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Those whose answers have the field."""

# In a string its quotes would be escaped, so what is found is the field.
_FIELD: Final = re.compile(rb'"system_fingerprint"\s*:\s*(?:null|"(?:[^"\\]|\\.)*")')
_NAME: Final = b'"system_fingerprint"'


@lru_cache(maxsize=1024)
def stamp_of(endpoint: str, model: str, version: str) -> Stamp:
    """Return what writes the fingerprint into a JSON object; nothing where it does not belong."""
    if endpoint not in _ENDPOINTS:
        return _as_it_is
    field = b'"system_fingerprint":' + msgspec.json.encode(f"{model}@{version}")

    def stamp(payload: bytes) -> bytes:
        if _NAME in payload and (found := _FIELD.search(payload)) is not None:
            return payload[: found.start()] + field + payload[found.end() :]
        end = payload.rfind(b"}")
        if end < 0 or not payload[:end].rstrip().endswith(_VALUE_ENDS):
            return payload  # no object, or an empty one
        return b"%b,%b%b" % (payload[:end], field, payload[end:])

    return stamp


_VALUE_ENDS: Final = tuple(bytes([byte]) for byte in b'"]}0123456789el')  # also of true, null


def _as_it_is(payload: bytes) -> bytes:
    return payload
