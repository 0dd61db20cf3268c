"""Goal: segmentation never changes a response, and arbitrary bytes raise only known errors."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.openai_http.response_reader import (
    DisconnectedError,
    HttpResponse,
    NotHttpError,
    ResponseReader,
    ResponseTooLargeError,
)

CONTENT_BYTES_MAX = 40
UNREAD = 503

# Made of tokens of the protocol, so that nearly valid responses are common.
streams = st.lists(
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.0 503 Busy\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 101 Other\r\n",
            b"Content-Length: 3\r\n",
            b"Content-Length: 41\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Connection: close\r\n",
            b"Upgrade: x\r\nConnection: upgrade\r\n",
            b"\r\n",
            b"3\r\nabc\r\n",
            b"0\r\n\r\n",
            b"abc",
            b"x" * 50,
            b"\x00",
            b"\n",
        ]
    ),
    max_size=12,
).map(b"".join)
cuts = st.lists(st.integers(0, 300), max_size=20)


def read(pieces: list[bytes]) -> HttpResponse | type[Exception]:
    """Return the caller's result if the server sends `pieces` and closes.

    With an unread status its head is returned, and bytes that arrived with it; only the status is
    independent of the segmentation.
    """
    reader = ResponseReader(CONTENT_BYTES_MAX)
    reader.expect({UNREAD})
    try:
        for piece in pieces:
            if (response := reader.feed(piece)) is not None:
                return response if response[0] != UNREAD else (UNREAD, b"")
        return reader.end()
    except (NotHttpError, ResponseTooLargeError, DisconnectedError) as failure:
        return type(failure)


@given(stream=streams, at=cuts)
def test_segmentation_does_not_change_the_response(stream: bytes, at: list[int]) -> None:
    edges = [0, *sorted({min(cut, len(stream)) for cut in at}), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges) if start < end]
    expected = read([stream] if stream else [])
    assert read(pieces) == expected
    assert isinstance(expected, type) or len(expected[1]) <= CONTENT_BYTES_MAX


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=10))
def test_arbitrary_bytes_raise_only_known_errors(pieces: list[bytes]) -> None:
    read(pieces)
