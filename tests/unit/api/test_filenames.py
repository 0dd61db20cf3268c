"""Goal: no file name can end a header, leave its folder or hide its type."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.files.file_routes import content_disposition
from api.files.upload_form import NAME_CHARS_MAX, safe_filename


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"a.jsonl", "a.jsonl"),
        (b"../../etc/passwd", "passwd"),
        (rb"C:\data\in.jsonl", "in.jsonl"),
        (b"a\r\nSet-Cookie: x", "aSet-Cookie: x"),
        ("a\u202egnp.exe".encode(), "agnp.exe"),
        (b"nul\x00l", "null"),
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
