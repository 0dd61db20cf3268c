"""How model versions and engine hashes are written where people and clients read them."""

import re
from typing import Final

DIGITS_SHOWN: Final = 12
"""Digits of a digest in a line or a fingerprint; `name@version` names a version with as many."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether a version is a SHA-256 in hex, which names one model; a legacy text may name more."""
    return _DIGEST.fullmatch(text) is not None


def short_digest(text: str) -> str:
    """Return the first digits of a SHA-256 in hex; any other text, as a legacy version, whole."""
    return text[:DIGITS_SHOWN] if is_digest(text) else text


def version_in_full(model: str, version: str) -> str:
    """Return `name@version` of the version that ran for `model`, the name in a request.

    A name that was pinned to digits of this version gets all of them.
    """
    name, at, start = model.rpartition("@")
    is_pinned = bool(at and name and start) and version.startswith(start)
    return f"{name if is_pinned else model}@{version}"
