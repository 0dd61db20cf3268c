"""Writes `system_fingerprint`, the model version that answered, into answers and chunks.

Engines write their own value into some chunks or none. It is replaced, so that the field always
equals the header `x-millrace-model-version`.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

WriteFingerprint = Callable[[bytes], bytes]

_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints whose answers have the field."""

# Inside a JSON string its quotes would be escaped, so a match is always the field.
_FIELD: Final = re.compile(rb'"system_fingerprint"\s*:\s*(?:null|"(?:[^"\\]|\\.)*")')
_NAME: Final = b'"system_fingerprint"'
_VALUE_ENDS: Final = tuple(bytes([byte]) for byte in b'"]}0123456789el')  # also of true, null


@lru_cache(maxsize=1024)
def fingerprint_writer(endpoint: str, model: str, version: str) -> WriteFingerprint:
    """Return a function that writes the fingerprint into a JSON object.

    For an endpoint without the field, the function returns its argument.
    """
    if endpoint not in _ENDPOINTS:
        return _unchanged
    field = b'"system_fingerprint":' + msgspec.json.encode(f"{model}@{version}")

    def write_fingerprint(payload: bytes) -> bytes:
        if _NAME in payload and (found := _FIELD.search(payload)) is not None:
            return payload[: found.start()] + field + payload[found.end() :]
        end = payload.rfind(b"}")
        if end < 0 or not payload[:end].rstrip().endswith(_VALUE_ENDS):
            return payload  # no object, or an empty one
        return b"%b,%b%b" % (payload[:end], field, payload[end:])

    return write_fingerprint


def _unchanged(payload: bytes) -> bytes:
    return payload
