"""The cursor of a list, as clients send it."""

from uuid import UUID

from core.ids import parse_public_id
from jobs.pages import unknown_cursor


def parse_after(prefix: str, after: str | None) -> UUID | None:
    """Return the row to begin behind, or None for the first page. Raises FieldRefusedError."""
    if after is None:
        return None
    row_id = parse_public_id(prefix, after)
    if row_id is None:
        raise unknown_cursor()
    return row_id
