"""Reads the answer to one HTTP/1.1 call at a time out of bytes, whatever bytes those are."""

import contextlib
from collections.abc import Container

import httptools

HEAD_BYTES_MAX = 64 * 1024
"""Bound on the heads of one answer, those of interim answers included."""

_FINAL_STATUS_MIN = 200

HttpResponse = tuple[int, bytes]
"""Status and content; of a status whose content nobody wants, the head."""


class DisconnectedError(Exception):
    """The server closed the connection before it had answered."""


class NotHttpError(Exception):
    """The server's answer is not HTTP, or its head is too large."""


class ResponseTooLargeError(Exception):
    """The answer's content is larger than the limit."""


class ResponseReader:
    """The answers of one connection. It must not be used again after it has raised."""

    def __init__(self, content_bytes_max: int) -> None:
        """Expect nothing yet."""
        self._content_bytes_max = content_bytes_max
        self._parser = httptools.HttpResponseParser(self)  # a cycle: `release` ends it
        self.expect(())

    def expect(self, unread: Container[int]) -> None:
        """Begin another answer; of one with a status of `unread` the head is read and given."""
        self._unread = unread
        self._status = 0  # until the head has ended
        self._heads: list[bytes] = []  # what came until then
        self._heads_bytes = 0
        self._parts: list[bytes] = []
        self._room_bytes = self._content_bytes_max
        self._complete = False
        self.leaves_connection_usable = False

    @property
    def is_done(self) -> bool:
        """Whether all has come that matters, though the answer is not complete."""
        return False

    def feed(self, data: bytes) -> HttpResponse | None:
        """Return the answer once it is complete. Raises NotHttpError, ResponseTooLargeError."""
        if not self._status:
            self._heads.append(data)
            self._heads_bytes += len(data)
        broken = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            broken = not self._complete  # else the answer is whole and more follows it
            self.leaves_connection_usable = False
        if self._status in self._unread:
            return self._status, b"".join(self._heads)
        if self._room_bytes < 0:
            raise ResponseTooLargeError
        if broken or (not self._status and self._heads_bytes > HEAD_BYTES_MAX):
            raise NotHttpError
        return self._answer() if self._complete else None

    def end(self) -> HttpResponse:
        """Return the answer that the close of the connection ends. Raises DisconnectedError."""
        if self._status and _states_no_length(b"".join(self._heads)):
            return self._answer()
        raise DisconnectedError

    def release(self) -> None:
        """Let go of the parser; nothing is fed any more."""
        del self._parser

    def _answer(self) -> HttpResponse:
        parts, self._parts, self._heads = self._parts, [], []
        return self._status, parts[0] if len(parts) == 1 else b"".join(parts)

    def on_message_begin(self) -> None:
        """See `httptools`; raises to stop it at what nobody asked for."""
        if self._complete:
            raise NotHttpError

    def on_headers_complete(self) -> None:
        """See `httptools`; a status below 200 only announces the answer."""
        status = self._parser.get_status_code()
        if status >= _FINAL_STATUS_MIN:
            self._status = status

    def on_body(self, part: bytes) -> None:
        """See `httptools`."""
        self._room_bytes -= len(part)
        if self._room_bytes >= 0:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        """See `httptools`."""
        if self._status:
            self._complete = True
            self.leaves_connection_usable = self._parser.should_keep_alive()


class _RetryAfter:
    """Notes the Retry-After of the last head that a parser read."""

    text: str | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.text = value.decode("latin-1").strip()


def retry_after(head: bytes) -> str | None:
    """Return the Retry-After of a head that an ResponseReader gave; None without one."""
    field = _RetryAfter()
    with contextlib.suppress(httptools.HttpParserError):  # in what came behind the head
        httptools.HttpResponseParser(field).feed_data(head)
    return field.text


class _StatedLength:
    """Notes whether the last head that a parser read states where its content ends."""

    stated = False

    def on_message_begin(self) -> None:
        self.stated = False

    def on_header(self, name: bytes, value: bytes) -> None:
        field = name.lower()
        chunked = field == b"transfer-encoding" and b"chunked" in value.lower()
        self.stated = self.stated or chunked or field == b"content-length"


def _states_no_length(heads: bytes) -> bool:
    """Whether the last head in `heads` leaves the end of the content to the close.

    A second reading, and only here: the parser does not tell, and to see fields costs every call.
    """
    length = _StatedLength()
    httptools.HttpResponseParser(length).feed_data(heads)
    return not length.stated
