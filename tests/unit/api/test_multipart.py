"""Goal: a form is parsed completely and within its limits, whatever a client sends."""

import pytest

from api.files.upload_form import (
    FIELD_BYTES_MAX,
    PARTS_MAX,
    FileForm,
    FormRefusedError,
    form_boundary,
)

BOUNDARY = b"frontier"


def part(name: str, value: bytes, extra: str = "") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return b"--" + BOUNDARY + b"\r\n" + head.encode() + value + b"\r\n"


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def read(content: bytes) -> tuple[FileForm, bytes]:
    taken: list[bytes] = []
    form = FileForm(BOUNDARY, taken.append)
    form.feed(content)
    form.finish()
    return form, b"".join(taken)


FILE = part("file", b"line\r\n", '; filename="a.jsonl"')
PURPOSE = part("purpose", b"batch")


@pytest.mark.parametrize("parts", [(FILE, PURPOSE), (PURPOSE, FILE)])
def test_parts_come_in_any_order(parts: tuple[bytes, bytes]) -> None:
    form, content = read(body(*parts))

    assert form.fields == {"purpose": "batch"}
    assert form.filename == b"a.jsonl"
    assert content == b"line\r\n"


def test_an_empty_file_is_a_file() -> None:
    form, content = read(body(PURPOSE, part("file", b"", '; filename="e"')))

    assert (form.filename, content) == (b"e", b"")


def test_a_file_part_needs_no_filename() -> None:
    form, content = read(body(PURPOSE, part("file", b"x")))

    assert (form.filename, content) == (b"", b"x")


def test_bytes_after_the_end_are_ignored() -> None:
    _, content = read(body(PURPOSE, FILE) + b"epilogue" * 10)

    assert content == b"line\r\n"


def test_a_file_may_contain_boundary_like_bytes() -> None:
    tricky = b"\r\n--front\r\n--frontie\r\n-\r\n--frontierX\r\r\n"

    assert read(body(part("file", tricky)))[1] == tricky


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (PURPOSE + FILE, "incomplete"),
        (b"", "incomplete"),
        (body(PURPOSE), "no file"),
        (body(FILE, FILE), "two files"),
        (body(PURPOSE, PURPOSE, FILE), "twice"),
        (body(part("purpose", b"x" * (FIELD_BYTES_MAX + 1)), FILE), "exceeds"),
        (body(*(part(f"p{n}", b"") for n in range(PARTS_MAX + 1))), "more than"),
        (body(part("purpose", b"\xff"), FILE), "UTF-8"),
        (body(part("purpose", b"a\x00"), FILE), "0000"),
        (b"--" + BOUNDARY + b"\r\nX: y\r\n\r\n\r\n" + body(), "no name"),
        (b"--wrong\r\n\r\n", "malformed"),
        (b"--" + BOUNDARY + b"\r\n" + b"X: y\r\n" * 20 + body(FILE), "malformed"),
        (b"--" + BOUNDARY + b"\r\nX: " + b"y" * 5000 + body(FILE), "malformed"),
        (b"--" + BOUNDARY + b"\r\nBad Header: y\r\n\r\n" + body(FILE), "malformed"),
    ],
)
def test_an_invalid_form_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(FormRefusedError, match=said):
        read(content)


def test_the_boundary_is_read_from_the_content_type() -> None:
    assert form_boundary('multipart/form-data; boundary="a b"') == b"a b"
    assert form_boundary("application/json") is None
    with pytest.raises(FormRefusedError):
        form_boundary("multipart/form-data")
    with pytest.raises(FormRefusedError):
        FileForm(b"x" * 300, bytearray().extend)
