"""Goal: forms, file names and ranges are safe and within their limits, whatever a client sends."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.files.file_routes import (
    RangeUnsatisfiableError,
    content_disposition,
    parse_range,
)
from api.files.upload_form import (
    FIELD_BYTES_MAX,
    NAME_CHARS_MAX,
    PARTS_MAX,
    FileForm,
    FormRefusedError,
    form_boundary,
    safe_filename,
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


TRICKY = b"\r\n--front\r\n--frontie\r\n-\r\n--frontierX\r\r\n"


@pytest.mark.parametrize(
    ("sent", "filename", "content"),
    [
        (body(FILE, PURPOSE), b"a.jsonl", b"line\r\n"),
        (body(PURPOSE, FILE), b"a.jsonl", b"line\r\n"),
        (body(PURPOSE, part("file", b"", '; filename="e"')), b"e", b""),
        (body(PURPOSE, part("file", b"x")), b"", b"x"),
        (body(PURPOSE, FILE) + b"epilogue" * 10, b"a.jsonl", b"line\r\n"),
        (body(PURPOSE, part("file", TRICKY)), b"", TRICKY),
        (body(PURPOSE, part("file", b"x", '; filename="a\nb\x0b"')), b"a\nb\x0b", b"x"),
    ],
    ids=[
        *("file first", "purpose first", "empty", "no name", "bytes after the end"),
        *("boundary-like", "line break in the name"),
    ],
)
def test_a_valid_form(sent: bytes, filename: bytes, content: bytes) -> None:
    form, found = read(sent)

    assert form.fields == {"purpose": "batch"}
    assert (form.filename, found) == (filename, content)


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


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"a.jsonl", "a.jsonl"),
        (b"../../etc/passwd", "passwd"),
        (rb"C:\data\in.jsonl", "in.jsonl"),
        (b"a\r\nSet-Cookie: x", "aSet-Cookie: x"),
        ("a\u202egnp.exe".encode(), "agnp.exe"),
        (b"nul\x00l", "null"),
        (b"a\nb\x0b.jsonl", "ab.jsonl"),
        (b"..", "file"),
        (b"", "file"),
        (b"/", "file"),
        ("日本.jsonl".encode(), "日本.jsonl"),
        (b"x" * 1000, "x" * NAME_CHARS_MAX),
    ],
)
def test_safe_filenames(raw: bytes, shown: str) -> None:
    assert safe_filename(raw) == shown


@given(st.binary(max_size=300))
def test_any_name_survives_a_header(raw: bytes) -> None:
    name = safe_filename(raw)
    header = content_disposition(name)

    assert header.isascii()
    assert header.isprintable()
    assert unquote(header.rpartition("''")[2]) == name


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", range(0, 1)),
        ("bytes=2-", range(2, 10)),
        ("bytes=2-4", range(2, 5)),
        ("bytes=2-99999", range(2, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-99", range(0, 10)),
        (None, None),
        ("", None),
        ("bytes=-", None),
        ("bytes=4-2", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=" + "9" * 5000 + "-", None),
    ],
)
def test_a_single_range(header: str | None, expected: range | None) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)]
)
def test_a_range_after_the_end(header: str, size: int) -> None:
    with pytest.raises(RangeUnsatisfiableError):
        parse_range(header, size)
