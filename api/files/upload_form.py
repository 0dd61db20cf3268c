"""The form of an upload, parsed as it arrives: fields are kept, the file's bytes passed on.

Parts may come in any order. The parser does no I/O.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from api.http.errors import ApiError
from jobs.store.files import (
    EXPIRES_AFTER_S_MAX,
    EXPIRES_AFTER_S_MIN,
    INPUT_EXPIRES_AFTER_S,
    INPUT_PURPOSE,
    UPLOAD_PURPOSES,
)

FILE_PART: Final = "file"
PARTS_MAX: Final = 32
FIELD_BYTES_MAX: Final = 4096
HEADERS_PER_PART_MAX: Final = 8
HEADER_BYTES_MAX: Final = 4096


class FormRefusedError(ApiError):
    """The form is malformed or exceeds a limit."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """`param` names the invalid part."""
        super().__init__(400, message, code="invalid_form", param=param)


@dataclass(slots=True)
class _Part:
    """The part that is being parsed."""

    name: str = ""
    disposition: bytes = b""
    value: bytearray | None = None  # None: the file, whose bytes are passed on


class FileForm:
    """The form of an upload: fields, and one part named `file`."""

    def __init__(self, boundary: bytes, on_file_data: Callable[[bytes], None]) -> None:
        """`on_file_data` receives the file's bytes in order. Raises FormRefusedError."""
        self.fields: dict[str, str] = {}
        self.filename: bytes | None = None  # as sent; None before the file part
        self._on_file_data = on_file_data
        self._part = _Part()
        self._part_count = 0
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._is_complete = False
        callbacks = {
            "on_part_begin": self._on_part_begin,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_end": self._on_end,
        }
        try:
            self._parser = MultipartParser(
                boundary,
                callbacks,  # type: ignore[arg-type]  # a TypedDict with these keys
                max_header_count=HEADERS_PER_PART_MAX,
                max_header_size=HEADER_BYTES_MAX,
            )
        except FormParserError:
            raise FormRefusedError("The boundary of the form is too long.") from None

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the body, split anywhere. Raises FormRefusedError."""
        try:
            self._parser.write(data)
        except FormParserError:
            raise FormRefusedError("The form is malformed.") from None

    def finish(self) -> None:
        """Check that the form is complete. Raises FormRefusedError."""
        if not self._is_complete:
            raise FormRefusedError("The form is incomplete: its closing boundary is missing.")
        if self.filename is None:
            raise FormRefusedError("The form has no file.", param=FILE_PART)

    def _on_part_begin(self) -> None:
        self._part_count += 1
        if self._part_count > PARTS_MAX:
            raise FormRefusedError(f"The form has more than {PARTS_MAX} parts.")
        self._part = _Part()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if bytes(self._header_name).lower() == b"content-disposition":
            self._part.disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._part.disposition)
        if kind != b"form-data" or b"name" not in options:
            raise FormRefusedError("A part of the form has no name.")
        self._part.name = options[b"name"].decode("utf-8", errors="replace")
        if self._part.name == FILE_PART:
            if self.filename is not None:
                raise FormRefusedError("The form has two files.", param=FILE_PART)
            self.filename = options.get(b"filename", b"")
        else:
            self._part.value = bytearray()

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.value is None:
            self._on_file_data(data[start:end])
            return
        if len(self._part.value) + end - start > FIELD_BYTES_MAX:
            raise FormRefusedError(f"A field of the form exceeds {FIELD_BYTES_MAX} bytes.")
        self._part.value += data[start:end]

    def _on_part_end(self) -> None:
        if self._part.value is None:
            return
        name = self._part.name
        if name in self.fields:
            raise FormRefusedError("The form has the same field twice.", param=name)
        try:
            text = self._part.value.decode("utf-8")
        except UnicodeDecodeError:
            raise FormRefusedError("A field of the form is not UTF-8.", param=name) from None
        if "\x00" in text:
            raise FormRefusedError("The character U+0000 is not allowed.", param=name)
        self.fields[name] = text

    def _on_end(self) -> None:
        self._is_complete = True


def form_boundary(content_type: str) -> bytes | None:
    """Return the boundary of a multipart form, or None for another media type."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        return None
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise FormRefusedError("The Content-Type names no boundary.")
    return boundary


_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def upload_fields(fields: dict[str, str]) -> tuple[str, int | None]:
    """Return the purpose of a file and the seconds after which it expires; None: never.

    Unknown fields are ignored. Raises FormRefusedError.
    """
    purpose = fields.get("purpose")
    if purpose is None:
        raise FormRefusedError("The form has no purpose.", param="purpose")
    if purpose not in UPLOAD_PURPOSES:
        raise FormRefusedError(
            f"The purpose must be one of {', '.join(UPLOAD_PURPOSES)}.", param="purpose"
        )
    expires_after_s = _expires_after_s(fields)
    if expires_after_s is None and purpose == INPUT_PURPOSE:
        expires_after_s = INPUT_EXPIRES_AFTER_S
    return purpose, expires_after_s


def _expires_after_s(fields: dict[str, str]) -> int | None:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise FormRefusedError("The anchor must be 'created_at'.", param=_ANCHOR)
    if seconds is None or not _NUMBER.fullmatch(seconds):
        raise FormRefusedError("The value must be a number of seconds.", param=_SECONDS)
    if not EXPIRES_AFTER_S_MIN <= int(seconds) <= EXPIRES_AFTER_S_MAX:
        raise FormRefusedError(
            f"The value must be {EXPIRES_AFTER_S_MIN} to {EXPIRES_AFTER_S_MAX} seconds.",
            param=_SECONDS,
        )
    return int(seconds)


NAME_CHARS_MAX: Final = 255
DEFAULT_NAME: Final = "file"


def safe_filename(raw: bytes) -> str:
    """Return the last part of a path, without characters that hide, reorder or end text."""
    text = raw.decode("utf-8", errors="replace").replace("\\", "/")
    name = text.rsplit("/", 1)[-1]
    # Category C: controls, CR and LF, U+0000, direction overrides, surrogates, unassigned.
    shown = "".join(c for c in name if not unicodedata.category(c).startswith("C"))
    return shown.strip(" .")[:NAME_CHARS_MAX] or DEFAULT_NAME
