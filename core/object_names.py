"""Prefixes and names of objects that several packages share."""

from typing import Final
from uuid import UUID

FILES: Final = "files/"
"""Uploaded files, one object each."""

RESULTS: Final = "results/"
"""Output and error files, by job and epoch."""

ANSWERS: Final = "answers/"
"""Answers too large for a record, by job."""

REQUESTS: Final = "requests/"
"""Lines of single requests, and bodies of online calls that fit no record."""

ORDERS: Final = "orders/"
"""Lines of input files in the order of emission, by job."""

KEYED_ANSWERS: Final = "idempotency/"
"""Long streams, for replays of calls with the same idempotency key."""

KEYS: Final = "keys/"
"""Data keys of jobs with encrypted bodies; deleting one makes those bodies unreadable."""

CALL_KEYS: Final = f"{KEYS}calls/"
"""Data keys of calls: one for each API process and hour."""


def job_key_name(job_id: UUID) -> str:
    """Return the name of a job's data key."""
    return f"{KEYS}{job_id.hex}"


def order_prefix(job_id: UUID) -> str:
    """Return the key prefix of the orders of a job."""
    return f"{ORDERS}{job_id.hex}/"


def lines_key(order_key: str) -> str:
    """Return the key of the ordered lines of a file, which go when the job ends."""
    return f"{order_key}/lines"


def positions_key(order_key: str) -> str:
    """Return the key of the positions of a file's items, which stay as long as the job."""
    return f"{order_key}/positions"


def answer_prefix(job_id: UUID) -> str:
    """Return the key prefix of a job's oversized answers; its output files copy them."""
    return f"{ANSWERS}{job_id.hex}/"
