"""Which URLs may receive orders and tokens. Pure."""

import re
from typing import Final
from urllib.parse import urlsplit

_VISIBLE: Final = re.compile(r"[!-~]*")


def url_problem(url: str) -> str | None:
    """Return why a URL may not be used: it needs TLS, or an address of this machine."""
    if not _VISIBLE.fullmatch(url):  # `urlsplit` drops tabs and newlines
        return "The URL is not valid."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "The URL is not valid."
    if not host or parts.scheme not in {"http", "https"}:
        return "The URL is not valid."
    if parts.username is not None or parts.password is not None or parts.fragment:
        return "The URL has credentials or a fragment."
    if parts.scheme == "http" and host not in {"127.0.0.1", "::1", "localhost"}:
        return "http is only for this machine; use https."
    return None
