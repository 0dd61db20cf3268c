"""The fields of a body that Millrace itself reads: its own, and `stream`."""

from typing import Final

OWN_FIELDS: Final = ("timeout_ms", "queue_timeout_ms", "background")
"""Fields that no engine knows: the api removes them from calls, a replica for an upstream."""

STREAMED_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints that can stream. At all others `stream` is an unknown field."""

StreamField = bool | int | float | str | None
"""Values of `stream`: like vLLM, more than JSON's booleans."""

_YES: Final = ("1", "true", "t", "yes", "y", "on")
_NO: Final = ("0", "false", "f", "no", "n", "off")
_MEANINGS: Final[dict[StreamField, bool]] = {
    True: True,  # equal to 1 and 1.0
    False: False,
    **dict.fromkeys(_YES, True),
    **dict.fromkeys(_NO, False),
}


def is_stream_requested(field: StreamField) -> bool:
    """Return the boolean of a `stream` field, as pydantic's lax mode does. Raises ValueError."""
    if field is None:  # as in bulk items
        return False
    meaning = _MEANINGS.get(field.lower() if isinstance(field, str) else field)
    if meaning is None:
        raise ValueError("`stream` is not a boolean")
    return meaning
