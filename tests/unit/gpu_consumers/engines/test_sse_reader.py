"""Goal: events are found whatever the segmentation, and their size is limited."""

import pytest

from gpu_consumers.engines.openai_http.response_reader import (
    NotHttpError,
    ResponseTooLargeError,
    SseParser,
    SseReader,
)

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


@pytest.mark.parametrize("text", [b"data: ", b"data: 1\n", b": ", b""])
def test_event_size_is_limited(text: bytes) -> None:
    lines = SseParser(Taken(), event_bytes_max=100)
    for _ in range(100 // max(1, len(text)) - 2):
        lines.feed(text or b"x")
    with pytest.raises(ResponseTooLargeError):
        lines.feed((text or b"x") * 100)


@pytest.mark.parametrize("line", [b"data:\n", b"data: \r\n"])
def test_event_of_empty_lines_is_limited(line: bytes) -> None:
    lines = SseParser(Taken(), event_bytes_max=100)
    with pytest.raises(ResponseTooLargeError):
        lines.feed(line * 101)


def test_many_events_in_one_part_are_not_limited() -> None:
    taken = Taken()
    SseParser(taken, event_bytes_max=100).feed(b"data: 1\n\n" * 1000)
    assert len(taken) == 1000


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_events_are_passed_on_as_they_arrive(size: int) -> None:
    taken = Taken()
    reader = SseReader(10, taken)
    reader.expect(())
    wire = HEAD + chunked(b"data: 1\n", b"\ndata: last\n\n") + b"0\r\n\r\n"
    answers = [reader.feed(wire[at : at + size]) for at in range(0, len(wire), size)]
    assert taken == [b"1", b"last"]
    assert answers[-1] == (200, b"")
    assert answers[:-1] == [None] * (len(answers) - 1)
    assert reader.leaves_connection_usable


def test_end_may_be_missing_after_the_last_event() -> None:
    reader = SseReader(10, Taken())
    reader.expect(())
    assert reader.feed(HEAD + chunked(b"data: last\n\n")) is None
    assert reader.is_done
    assert reader.end() == (200, b"")


def test_other_content_is_returned() -> None:
    taken = Taken()
    reader = SseReader(10, taken)
    reader.expect(())
    head = b"HTTP/1.1 400 No\r\nContent-Length: 9\r\nContent-Type: application/json\r\n\r\n"
    assert reader.feed(head + b"data: 1\n\n") == (400, b"data: 1\n\n")
    assert taken == []


def test_unread_status_has_no_events() -> None:
    taken = Taken()
    reader = SseReader(10, taken)
    reader.expect({200})
    answer = HEAD + chunked(b"data: 1\n\n")
    assert reader.feed(answer) == (200, answer)
    assert taken == []


def test_too_large_event_is_rejected() -> None:
    reader = SseReader(10, Taken())
    reader.expect(())
    with pytest.raises(ResponseTooLargeError):
        reader.feed(HEAD + chunked(b"x" * 600_000))


def test_malformed_stream_is_rejected() -> None:
    reader = SseReader(10, Taken())
    reader.expect(())
    with pytest.raises(NotHttpError):
        reader.feed(HEAD + b"not a chunk\r\n")
