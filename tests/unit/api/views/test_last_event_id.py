"""Goal: a stream continues after the event that the client names; other values are refused."""

import pytest
from fastapi import Request

from api.views.result_routes import SEQUENCE_MAX, _last_event_id
from jobs.errors import InvalidFieldError


def after(header: str | None) -> int:
    headers = [] if header is None else [(b"last-event-id", header.encode("latin-1"))]
    return _last_event_id(Request({"type": "http", "headers": headers}), 7)


@pytest.mark.parametrize(
    ("header", "expected"),
    [(None, 7), ("", 7), (" ", 7), ("0", 0), (" 31 ", 31), (str(SEQUENCE_MAX), SEQUENCE_MAX)],
)
def test_a_stream_continues_after_last_event_id(header: str | None, expected: int) -> None:
    assert after(header) == expected


@pytest.mark.parametrize(
    "header", ["x", "-1", "1e3", "\xb2", str(SEQUENCE_MAX + 1), "9" * 40, "0" * 11 + "9" * 4400]
)
def test_an_invalid_last_event_id_is_refused(header: str) -> None:
    with pytest.raises(InvalidFieldError) as refusal:
        after(header)
    assert refusal.value.param == "Last-Event-ID"
