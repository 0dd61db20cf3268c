"""Which calls are answered as streams: endpoints that have them, and what asks for one."""

from typing import Final

STREAMED_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints that have streams. At all others `stream` is a field that nobody knows."""

StreamField = bool | int | float | str | None
"""What a body may hold as `stream`: vLLM takes more than JSON's booleans, and so do we."""

_YES: Final = ("1", "true", "t", "yes", "y", "on")
_NO: Final = ("0", "false", "f", "no", "n", "off")
_MEANINGS: Final[dict[StreamField, bool]] = {
    True: True,  # equal to 1 and 1.0
    False: False,
    **dict.fromkeys(_YES, True),
    **dict.fromkeys(_NO, False),
}


def is_stream_requested(field: StreamField) -> bool:
    """Return what `stream` says, read as pydantic's lax mode reads it. Raises ValueError."""
    if field is None:  # as bulk items have it
        return False
    meaning = _MEANINGS.get(field.lower() if isinstance(field, str) else field)
    if meaning is None:
        raise ValueError("`stream` is no boolean")
    return meaning
