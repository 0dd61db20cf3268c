"""Goal: a response is read the same however it is segmented; invalid bytes raise known errors."""

import pytest

from gpu_consumers.engines.openai_http.response_reader import (
    HEAD_BYTES_MAX,
    DisconnectedError,
    HttpResponse,
    NotHttpError,
    ResponseReader,
    ResponseTooLargeError,
    SseParser,
    SseReader,
    retry_after,
)

OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = CHUNKED + b'2;why="x"\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: t\r\n\r\n'
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTED = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 4\r\nLink: </x>\r\n\r\n"
UNSIZED = b"HTTP/1.1 200 OK\r\nServer: s\r\n\r\nhello"


def reading(unread: tuple[int, ...] = (), content_bytes_max: int = 100) -> ResponseReader:
    reader = ResponseReader(content_bytes_max)
    reader.expect(unread)
    return reader


def read(reader: ResponseReader, *pieces: bytes) -> HttpResponse | None:
    """Feed until an answer is there; fail if bytes are left then."""
    for count, piece in enumerate(pieces, 1):
        if (answer := reader.feed(piece)) is not None:
            assert count == len(pieces)
            return answer
    return None


def bytewise(content: bytes) -> list[bytes]:
    return [content[at : at + 1] for at in range(len(content))]


def test_one_reader_reads_consecutive_responses() -> None:
    reader = ResponseReader(100)
    for answer in (SIZED, WHOLE, b"HTTP/1.1 204 No Content\r\n\r\n", CONTINUED + SIZED):
        reader.expect(())
        found = reader.feed(answer)
        assert found in ((200, b"hello"), (204, b""))
        assert reader.leaves_connection_usable


@pytest.mark.parametrize("before", [b"", CONTINUED, HINTED])
def test_close_ends_a_response_without_length(before: bytes) -> None:
    for pieces in ([before + UNSIZED], bytewise(before + UNSIZED)):
        reader = reading()
        assert read(reader, *pieces) is None
        assert reader.end() == (200, b"hello")
        assert not reader.leaves_connection_usable


@pytest.mark.parametrize("answer", [SIZED, WHOLE, HINTED + SIZED])
def test_close_within_a_response_is_a_disconnect(answer: bytes) -> None:
    for cut in range(len(answer)):
        reader = reading()
        assert reader.feed(answer[:cut]) is None
        with pytest.raises(DisconnectedError):
            reader.end()


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        SIZED + SIZED,
        SIZED + b"HTTP",
        SIZED + b"\x00garbage",
        OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello and more",
    ],
)
def test_trailing_bytes_end_the_connection_but_not_the_response(answer: bytes) -> None:
    reader = reading()
    assert reader.feed(answer) == (200, b"hello")
    assert not reader.leaves_connection_usable


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01\x02\x00",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"<html></html>",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 99999999999999999999999\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        OK + b"no colon\r\n\r\n",
        OK + b"a: \x00\r\n\r\n",
        CHUNKED + b"zz\r\nhello\r\n",
        CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffffff\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\nx",
        OK + b"a: " + b"x" * HEAD_BYTES_MAX,
        OK + b"a: b\r\n" * HEAD_BYTES_MAX,
        CONTINUED * HEAD_BYTES_MAX,
    ],
    ids=lambda answer: answer[:48].decode("latin-1").encode("unicode_escape").decode(),
)
def test_malformed_responses_are_rejected(answer: bytes) -> None:
    with pytest.raises(NotHttpError):
        reading().feed(answer)
    with pytest.raises(NotHttpError):
        read(reading(), *bytewise(answer[: HEAD_BYTES_MAX + 100]))


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 101\r\n\r\n" + b"x" * 101,
        OK + b"Content-Length: 9999999\r\n\r\n" + b"x" * 200,
        OK + b"\r\n" + b"x" * 101,
        CHUNKED + b"1\r\nx\r\n" * 101,
        CHUNKED + b"ffff\r\n" + b"x" * 101,
    ],
)
def test_content_is_limited(answer: bytes) -> None:
    with pytest.raises(ResponseTooLargeError):
        reading().feed(answer)
    with pytest.raises(ResponseTooLargeError):
        read(reading(), *bytewise(answer))
    assert reading().feed(OK + b"Content-Length: 100\r\n\r\n" + b"x" * 100) is not None


@pytest.mark.parametrize(
    "rest", [b"Content-Length: 5\r\n\r\n", b"\r\n", b"Transfer-Encoding: chunked\r\n\r\nzz"]
)
def test_unread_content_is_not_awaited(rest: bytes) -> None:
    reader = reading(unread=(503,))
    head = b"HTTP/1.1 503 Busy\r\nRETRY-AFTER: 7 \r\n"
    answer = reader.feed(head + rest)
    assert answer == (503, head + rest)
    assert retry_after(answer[1]) == "7"
    assert not reader.leaves_connection_usable


def test_unread_content_may_have_arrived() -> None:
    reader = reading(unread=(503,))
    refusal = SIZED.replace(b"200", b"503")
    assert reader.feed(refusal) == (503, refusal)
    assert retry_after(refusal) is None
    assert reader.leaves_connection_usable


TEXT = (
    b': keep-alive\n\ndata: {}\n\ndata:{"a":1}\r\n\r\nevent: x\nid: 7\ndata: {\ndata:  }\n\n\n'
    b"data: last\n\ndata: never\n\n"
)
EVENTS = [b"{}", b'{"a":1}', b"{  }", b"last"]
HEAD = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: text/event-stream; charset=utf-8\r\n\r\n"
)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


class Taken(list[bytes]):
    def __call__(self, payload: bytes) -> bool:
        self.append(payload)
        return payload != b"last"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_independent_of_segmentation(size: int) -> None:
    taken = Taken()
    lines = SseParser(taken)
    for start in range(0, len(TEXT), size):
        lines.feed(TEXT[start : start + size])
    assert taken == EVENTS
    assert lines.is_done


@pytest.mark.parametrize("text", [b"data: ", b"data: 1\n", b"data:\n", b"data: \r\n", b": ", b""])
def test_event_size_is_limited(text: bytes) -> None:
    lines = SseParser(Taken(), event_bytes_max=100)
    for _ in range(100 // max(1, len(text)) - 2):
        lines.feed(text or b"x")
    with pytest.raises(ResponseTooLargeError):
        lines.feed((text or b"x") * 100)


def test_many_events_in_one_part_are_not_limited() -> None:
    taken = Taken()
    SseParser(taken, event_bytes_max=100).feed(b"data: 1\n\n" * 1000)
    assert len(taken) == 1000


def sse_reading(*unread: int) -> tuple[SseReader, Taken]:
    taken = Taken()
    reader = SseReader(10, taken)
    reader.expect(unread)
    return reader, taken


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_events_are_passed_on_as_they_arrive(size: int) -> None:
    reader, taken = sse_reading()
    wire = HEAD + chunked(b"data: 1\n", b"\ndata: last\n\n") + b"0\r\n\r\n"
    answers = [reader.feed(wire[at : at + size]) for at in range(0, len(wire), size)]
    assert taken == [b"1", b"last"]
    assert answers[-1] == (200, b"")
    assert answers[:-1] == [None] * (len(answers) - 1)
    assert reader.leaves_connection_usable


def test_end_may_be_missing_after_the_last_event() -> None:
    reader, _ = sse_reading()
    assert reader.feed(HEAD + chunked(b"data: last\n\n")) is None
    assert reader.is_done
    assert reader.end() == (200, b"")


def test_other_content_and_unread_statuses_have_no_events() -> None:
    reader, taken = sse_reading(503)
    head = b"HTTP/1.1 400 No\r\nContent-Length: 9\r\nContent-Type: application/json\r\n\r\n"
    assert reader.feed(head + b"data: 1\n\n") == (400, b"data: 1\n\n")
    reader.expect({200})
    answer = HEAD + chunked(b"data: 1\n\n")
    assert reader.feed(answer) == (200, answer)
    assert taken == []


@pytest.mark.parametrize(
    ("content", "failure"),
    [(chunked(b"x" * 600_000), ResponseTooLargeError), (b"not a chunk\r\n", NotHttpError)],
)
def test_too_large_or_malformed_events_are_rejected(
    content: bytes, failure: type[Exception]
) -> None:
    reader, _ = sse_reading()
    with pytest.raises(failure):
        reader.feed(HEAD + content)
