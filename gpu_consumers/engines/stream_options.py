"""What a client that streams wants to see of its counts, and how the engine is asked for them."""

import msgspec

from core.streaming import StreamField, asks_to_stream

_ABSENT = msgspec.Raw(b"null")


class StreamOptions(msgspec.Struct, frozen=True):
    """The field `stream_options`: which counts the client wants to see."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's own


class _Asks(msgspec.Struct):
    stream: StreamField = None
    stream_options: msgspec.Raw = _ABSENT


class _Choices(msgspec.Struct):
    n: int | None = None


_asks = msgspec.json.Decoder(_Asks)
_choices = msgspec.json.Decoder(_Choices, strict=False)  # as vLLM reads it
_options = msgspec.json.Decoder(StreamOptions | None)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_optional_fields = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


def requested_stream_options(body: bytes) -> StreamOptions | None:
    """Return the client's `stream_options` if the body asks to stream; None if it does not.

    Options that cannot be read count as none: whoever runs the body refuses them.
    """
    if b'"stream"' not in body and b"\\u" not in body:  # an escape may spell the name
        return None
    try:
        asks = _asks.decode(body)
        is_stream = asks_to_stream(asks.stream)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not is_stream:
        return None
    try:
        return _options.decode(asks.stream_options) or StreamOptions()
    except msgspec.ValidationError:
        return StreamOptions()


def choices_per_prompt(body: bytes) -> int:
    """Return how many choices each prompt of a body has; 1 where it says nothing that can be.

    The body is a JSON object.
    """
    try:
        return max(_choices.decode(body).n or 1, 1)
    except msgspec.ValidationError:
        return 1


def with_usage_requested(body: bytes) -> bytes:
    """Return a body that streams with `include_usage` set, every other field as it was.

    Unchanged where the options are no object: whoever runs the body refuses them.
    """
    fields = _fields.decode(body)
    try:
        options = _optional_fields.decode(fields.get("stream_options", _ABSENT))
    except msgspec.ValidationError:
        return body
    with_usage = (options or {}) | {"include_usage": msgspec.Raw(b"true")}
    return msgspec.json.encode(fields | {"stream_options": with_usage})
