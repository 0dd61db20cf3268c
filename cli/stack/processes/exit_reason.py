"""Why a child ended, as its log tells it."""

from pathlib import Path
from typing import Final

import msgspec

_TAIL_BYTES: Final = 64 * 1024


class _Line(msgspec.Struct):
    reason: str | None = None


def last_exit_reason(log: Path) -> str | None:
    """Return the reason that the log gave last; None where it tells none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            reason = msgspec.json.decode(line, type=_Line).reason
        except msgspec.MsgspecError:
            continue  # not a line of ours: a library's, or a half one
        if reason is not None:
            return reason
    return None
