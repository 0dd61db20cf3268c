"""Reads an HTTP response of server-sent events and passes each event on as it arrives."""

from collections.abc import Callable, Container

from gpu_consumers.engines.openai_http.response_reader import (
    HttpResponse,
    ResponseReader,
    ResponseTooLargeError,
)

EVENT_BYTES_MAX = 512 * 1024
"""Bound on the payload of one event; a record of the log holds no more."""

OnEvent = Callable[[bytes], bool]
"""Receives the payload of one event, one line; returns False if it was the last."""


class SseParser:
    """Finds events in a text that arrives in parts, by the standard of server-sent events."""

    def __init__(self, on_event: OnEvent, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        """Start at the beginning of a line."""
        self._on_event = on_event
        self._event_bytes_max = event_bytes_max
        self._parts: list[bytes] = []  # of an unfinished line
        self._data: list[bytes] = []  # of an unfinished event
        self._buffered_bytes = 0
        self.is_done = False
        """Whether the last event has arrived; anything after it is ignored."""

    def feed(self, part: bytes) -> None:
        """Parse the next part. Raises ResponseTooLargeError."""
        if self.is_done:
            return
        first, *others = part.split(b"\n")
        self._buffer(self._parts, first)
        for piece in others:
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._buffered_bytes -= len(line)
            self._parts.clear()
            if not self._parse_line(line.removesuffix(b"\r")):
                self.is_done = True
                return
            self._buffer(self._parts, piece)

    def _parse_line(self, line: bytes) -> bool:
        """Return False if the line ends the last event."""
        if line.startswith(b"data:"):
            self._buffered_bytes += 1  # empty lines are bounded too
            self._buffer(self._data, line[5:].removeprefix(b" "))
        elif not line and self._data:
            # JSON over several lines is equivalent to JSON with spaces.
            payload = b" ".join(self._data).replace(b"\r", b" ")
            self._data.clear()
            self._buffered_bytes = 0
            return self._on_event(payload)
        return True

    def _buffer(self, parts: list[bytes], part: bytes) -> None:
        self._buffered_bytes += len(part)
        if self._buffered_bytes > self._event_bytes_max:
            raise ResponseTooLargeError
        parts.append(part)


class SseReader(ResponseReader):
    """Reads one response: events are passed on, any other content is returned.

    The response of an event stream has no content. `release` it after its request.
    """

    def __init__(self, content_bytes_max: int, on_event: OnEvent) -> None:
        """Expect one response."""
        super().__init__(content_bytes_max)
        self._events = SseParser(on_event)
        self._is_event_stream = False
        self._is_event_too_large = False

    @property
    def is_done(self) -> bool:
        """See `ResponseReader`."""
        return self._events.is_done

    def expect(self, unread: Container[int]) -> None:
        """See `ResponseReader`."""
        super().expect(unread)
        self._is_event_stream = False

    def feed(self, data: bytes) -> HttpResponse | None:
        """See `ResponseReader`. Raises ResponseTooLargeError for one event, too."""
        response = super().feed(data)
        if self._is_event_too_large:
            raise ResponseTooLargeError
        return response

    def end(self) -> HttpResponse:
        """See `ResponseReader`; after the last event nothing more is needed."""
        return (self._status, b"") if self.is_done else super().end()

    def on_header(self, name: bytes, value: bytes) -> None:
        """See `httptools`."""
        if name.lower() == b"content-type":
            self._is_event_stream = value.lower().startswith(b"text/event-stream")

    def on_body(self, part: bytes) -> None:
        """See `httptools`."""
        if not self._is_event_stream:
            super().on_body(part)
        elif not self._is_event_too_large and self._status not in self._unread:
            try:
                self._events.feed(part)
            except ResponseTooLargeError:  # the parser would replace the exception
                self._is_event_too_large = True
