"""Reads an HTTP answer that is a stream of server-sent events, and hands on each as it comes."""

from collections.abc import Callable, Container

from gpu_consumers.engines.openai_http.response_reader import (
    HttpResponse,
    ResponseReader,
    ResponseTooLargeError,
)

EVENT_BYTES_MAX = 512 * 1024
"""Bound on the payload of one event; a record of the log holds no more."""

OnEvent = Callable[[bytes], bool]
"""Gets the payload of one event, one line; False when it was the last one."""


class SseParser:
    """Finds events in a text that comes in parts, as the standard of server-sent events has it."""

    def __init__(self, take: OnEvent, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        """Nothing has come yet."""
        self._take = take
        self._event_bytes_max = event_bytes_max
        self._parts: list[bytes] = []  # of a line that has not ended
        self._data: list[bytes] = []  # of an event that has not ended
        self._held_bytes = 0
        self.is_done = False
        """Whether the last event has come; what follows it is ignored."""

    def feed(self, part: bytes) -> None:
        """Take the next part. Raises ResponseTooLargeError."""
        if self.is_done:
            return
        first, *others = part.split(b"\n")
        self._hold(self._parts, first)
        for piece in others:
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._held_bytes -= len(line)
            self._parts.clear()
            if not self._take_line(line.removesuffix(b"\r")):
                self.is_done = True
                return
            self._hold(self._parts, piece)

    def _take_line(self, line: bytes) -> bool:
        """Return False when the line ends the last event."""
        if line.startswith(b"data:"):
            self._held_bytes += 1  # an empty line takes room, too
            self._hold(self._data, line[5:].removeprefix(b" "))
        elif not line and self._data:
            # JSON that was written on several lines is the same with spaces.
            payload = b" ".join(self._data).replace(b"\r", b" ")
            self._data.clear()
            self._held_bytes = 0
            return self._take(payload)
        return True

    def _hold(self, parts: list[bytes], part: bytes) -> None:
        self._held_bytes += len(part)
        if self._held_bytes > self._event_bytes_max:
            raise ResponseTooLargeError
        parts.append(part)


class SseReader(ResponseReader):
    """Reads one answer: events are handed on, anything else is returned whole.

    The answer of a stream of events has no content. `release` it after its call.
    """

    def __init__(self, content_bytes_max: int, take: OnEvent) -> None:
        """Expect one answer."""
        super().__init__(content_bytes_max)
        self._lines = SseParser(take)
        self._are_events = False
        self._is_event_too_large = False

    @property
    def is_done(self) -> bool:
        """See `ResponseReader`."""
        return self._lines.is_done

    def expect(self, unread: Container[int]) -> None:
        """See `ResponseReader`."""
        super().expect(unread)
        self._are_events = False

    def feed(self, data: bytes) -> HttpResponse | None:
        """See `ResponseReader`. Raises ResponseTooLargeError for one event, too."""
        answer = super().feed(data)
        if self._is_event_too_large:
            raise ResponseTooLargeError
        return answer

    def end(self) -> HttpResponse:
        """See `ResponseReader`; after the last event nothing more is needed."""
        return (self._status, b"") if self.is_done else super().end()

    def on_header(self, name: bytes, value: bytes) -> None:
        """See `httptools`."""
        if name.lower() == b"content-type":
            self._are_events = value.lower().startswith(b"text/event-stream")

    def on_body(self, part: bytes) -> None:
        """See `httptools`."""
        if not self._are_events:
            super().on_body(part)
        elif not self._is_event_too_large and self._status not in self._unread:
            try:
                self._lines.feed(part)
            except ResponseTooLargeError:  # through the parser it would lose its name
                self._is_event_too_large = True
