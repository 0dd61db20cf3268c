"""A host whose clock is wrong, by libfaketime where the machine has it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

SKEW_S: Final = 400
_PLACES: Final = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")


def library() -> Path | None:
    """Return the library that lies about the time, None where it is not installed."""
    found = (path for place in _PLACES for path in Path("/").glob(place.lstrip("/")))
    return next(found, None)


def skewed(path: Path, seconds: int = SKEW_S) -> Mapping[str, str]:
    """Return the variables of a host that is `seconds` ahead; its monotonic clock is right."""
    return {
        "LD_PRELOAD": str(path),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
