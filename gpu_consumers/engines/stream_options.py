"""The stream options that a client requests, and those that the engine is sent."""

import msgspec

from core.streaming import StreamField, is_stream_requested

_ABSENT = msgspec.Raw(b"null")


class StreamOptions(msgspec.Struct, frozen=True):
    """The field `stream_options`: which usage the client wants to see."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's own


class _StreamFields(msgspec.Struct):
    stream: StreamField = None
    stream_options: msgspec.Raw = _ABSENT


class _Choices(msgspec.Struct):
    n: int | None = None


_stream_fields = msgspec.json.Decoder(_StreamFields)
_choices = msgspec.json.Decoder(_Choices, strict=False)  # as vLLM reads it
_options = msgspec.json.Decoder(StreamOptions | None)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_optional_fields = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


def requested_stream_options(body: bytes) -> StreamOptions | None:
    """Return the client's `stream_options` if the body requests a stream; None if it does not.

    Unreadable options count as none: the engine rejects them.
    """
    if b'"stream"' not in body and b"\\u" not in body:  # an escape may spell the name
        return None
    try:
        fields = _stream_fields.decode(body)
        is_stream = is_stream_requested(fields.stream)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not is_stream:
        return None
    try:
        return _options.decode(fields.stream_options) or StreamOptions()
    except msgspec.ValidationError:
        return StreamOptions()


def choices_per_prompt(body: bytes) -> int:
    """Return the number of choices of each prompt; 1 if the body has no valid `n`.

    The body is a JSON object.
    """
    try:
        return max(_choices.decode(body).n or 1, 1)
    except msgspec.ValidationError:
        return 1


def with_usage_requested(body: bytes) -> bytes:
    """Return a streaming body with `include_usage` set, every other field unchanged.

    Unchanged if the options are no object: the upstream rejects them.
    """
    fields = _fields.decode(body)
    try:
        options = _optional_fields.decode(fields.get("stream_options", _ABSENT))
    except msgspec.ValidationError:
        return body
    with_usage = (options or {}) | {"include_usage": msgspec.Raw(b"true")}
    return msgspec.json.encode(fields | {"stream_options": with_usage})
