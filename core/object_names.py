"""Names of objects that more than one room must agree on."""

from typing import Final
from uuid import UUID

FILES: Final = "files/"
"""What clients uploaded, one object a file."""

RESULTS: Final = "results/"
"""What finalisers wrote: output and error files, by job and epoch."""

ANSWERS: Final = "answers/"
"""Answers too large for a record, by job."""

REQUESTS: Final = "requests/"
"""Lines of single requests, and bodies of online calls that fit no record."""

KEYED_ANSWERS: Final = "idempotency/"
"""Long streams that are given again to whoever repeats their key."""


KEYS: Final = "keys/"
"""Data keys of jobs whose bodies are encrypted; deleting one destroys what it encrypted."""

CALL_KEYS: Final = f"{KEYS}calls/"
"""Data keys of calls: one for each API process and hour."""


def job_key_name(job_id: UUID) -> str:
    """Return the name of a job's data key."""
    return f"{KEYS}{job_id.hex}"


def answer_prefix(job_id: UUID) -> str:
    """Return what the keys of a job's oversized answers start with; its files copy them."""
    return f"{ANSWERS}{job_id.hex}/"
