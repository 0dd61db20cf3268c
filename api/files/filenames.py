"""File names of clients: shown again, never used as a path."""

import re
import unicodedata
from typing import Final
from urllib.parse import quote

NAME_CHARS_MAX: Final = 255
DEFAULT_NAME: Final = "file"

_PLAIN: Final = re.compile(r"[^A-Za-z0-9._ -]")


def safe_filename(raw: bytes) -> str:
    """Return the last part of a path, without characters that hide, reorder or end text."""
    text = raw.decode("utf-8", errors="replace").replace("\\", "/")
    name = text.rsplit("/", 1)[-1]
    # Category C: controls, CR and LF, U+0000, direction overrides, surrogates, unassigned.
    shown = "".join(c for c in name if not unicodedata.category(c).startswith("C"))
    return shown.strip(" .")[:NAME_CHARS_MAX] or DEFAULT_NAME


def content_disposition(name: str) -> str:
    """Return the Content-Disposition of a download (RFC 6266), in ASCII."""
    plain = _PLAIN.sub("_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
