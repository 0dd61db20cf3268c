"""Identifies the machine that a process runs on, whatever container or pod it runs in."""

import hashlib
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpu_consumers.settings import HostSettings

_SOURCES: Final = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))
"""The installation's id, and that of the running kernel, which all its containers share."""

_ID: Final = re.compile(r"[0-9a-f-]{32,36}")


def host_id(settings: HostSettings, sources: Iterable[Path] = _SOURCES) -> str:
    """Return the id of this machine; a derived one is hashed, as machine ids are not public."""
    if settings.id is not None:
        return settings.id
    for source in sources:
        try:
            found = source.read_text().strip().lower()
        except OSError:
            continue
        if _ID.fullmatch(found):
            return _hashed(found)
    return _hashed(f"{uuid.getnode():x}")


def _hashed(machine_id: str) -> str:
    return hashlib.sha256(f"millrace-host:{machine_id}".encode()).hexdigest()[:16]
