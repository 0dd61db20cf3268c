"""Parses HTTP/1.1 responses, tolerating arbitrary bytes; server-sent events are passed on."""

import contextlib
from collections.abc import Callable, Container

import httptools

HEAD_BYTES_MAX = 64 * 1024
"""Bound on the heads of one response, including those of interim responses."""

_FINAL_STATUS_MIN = 200

HttpResponse = tuple[int, bytes]
"""Status and content; the head in place of the content for an unread status."""


class DisconnectedError(Exception):
    """The server closed the connection before it had responded."""


class NotHttpError(Exception):
    """The server's response is not HTTP, or its head is too large."""


class ResponseTooLargeError(Exception):
    """The response's content is larger than the limit."""


class ResponseReader:
    """The responses of one connection. It must not be used again after it has raised."""

    def __init__(self, content_bytes_max: int) -> None:
        self._content_bytes_max = content_bytes_max
        self._parser = httptools.HttpResponseParser(self)  # a reference cycle until `release`
        self.expect(())

    def expect(self, unread: Container[int]) -> None:
        """Start another response; if its status is in `unread`, only its head is returned."""
        self._unread = unread
        self._status = 0  # until the head has ended
        self._heads: list[bytes] = []  # received until then
        self._heads_bytes = 0
        self._parts: list[bytes] = []
        self._bytes_left = self._content_bytes_max
        self._complete = False
        self.leaves_connection_usable = False

    @property
    def is_done(self) -> bool:
        """Whether everything relevant was received although the response is incomplete."""
        return False

    def feed(self, data: bytes) -> HttpResponse | None:
        """Return the response once it is complete. Raises NotHttpError, ResponseTooLargeError."""
        if not self._status:
            self._heads.append(data)
            self._heads_bytes += len(data)
        is_broken = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            is_broken = not self._complete  # else the response is complete and more follows it
            self.leaves_connection_usable = False
        if self._status in self._unread:
            return self._status, b"".join(self._heads)
        if self._bytes_left < 0:
            raise ResponseTooLargeError
        if is_broken or (not self._status and self._heads_bytes > HEAD_BYTES_MAX):
            raise NotHttpError
        return self._response() if self._complete else None

    def end(self) -> HttpResponse:
        """Return the response that the connection's close ends. Raises DisconnectedError."""
        if self._status and _ends_with_close(b"".join(self._heads)):
            return self._response()
        raise DisconnectedError

    def release(self) -> None:
        """Delete the parser; nothing is fed afterwards."""
        del self._parser

    def _response(self) -> HttpResponse:
        parts, self._parts, self._heads = self._parts, [], []
        return self._status, parts[0] if len(parts) == 1 else b"".join(parts)

    def on_message_begin(self) -> None:
        """See `httptools`; raises to stop the parser at an unrequested response."""
        if self._complete:
            raise NotHttpError

    def on_headers_complete(self) -> None:
        """See `httptools`; a status below 200 is an interim response."""
        status = self._parser.get_status_code()
        if status >= _FINAL_STATUS_MIN:
            self._status = status

    def on_body(self, part: bytes) -> None:
        """See `httptools`."""
        self._bytes_left -= len(part)
        if self._bytes_left >= 0:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        """See `httptools`."""
        if self._status:
            self._complete = True
            self.leaves_connection_usable = self._parser.should_keep_alive()


class _Heads:
    """Records the fields of each head that a parser reads, as (lower-case name, value)."""

    def __init__(self, data: bytes) -> None:
        self.fields: list[list[tuple[bytes, bytes]]] = []
        with contextlib.suppress(httptools.HttpParserError):  # in bytes after a head
            httptools.HttpResponseParser(self).feed_data(data)

    def on_message_begin(self) -> None:
        self.fields.append([])

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[-1].append((name.lower(), value))


def retry_after(head: bytes) -> str | None:
    """Return the Retry-After field of a head that a ResponseReader returned; None without one."""
    fields = [field for fields in _Heads(head).fields for field in fields]
    stated = [value for name, value in fields if name == b"retry-after"]
    return stated[-1].decode("latin-1").strip() if stated else None


def _ends_with_close(heads: bytes) -> bool:
    """Whether the content after the last head in `heads` ends with the connection.

    Parsed a second time, only here: the parser does not report it, and a header callback would
    slow down every response.
    """
    return not any(
        name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower())
        for name, value in _Heads(heads).fields[-1]
    )


EVENT_BYTES_MAX = 512 * 1024
"""Bound on the payload of one event; a record of the log holds no more."""

OnEvent = Callable[[bytes], bool]
"""Receives the payload of one event, one line; returns False if it was the last."""


class SseParser:
    """Finds events in a text that arrives in parts, by the standard of server-sent events."""

    def __init__(self, on_event: OnEvent, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
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
