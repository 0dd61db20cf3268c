"""Reads what acts of the registry publish."""

import sqlalchemy as sa

from storage.postgres.outbox import outbox
from topics.records.codec import decode
from topics.records.model_states import ModelKeyState, ModelState


def published(connection: sa.Connection) -> list[tuple[str, ModelState | ModelKeyState]]:
    """Return keys and states in the outbox, in their order."""
    rows = connection.execute(
        sa.select(outbox).where(outbox.c.topic == "models").order_by(outbox.c.id)
    )
    found: list[tuple[str, ModelState | ModelKeyState]] = []
    for row in rows:
        key = row.key.decode()
        is_version = key.startswith(("version:", "retired:"))
        kind: type[ModelState] | type[ModelKeyState] = ModelState if is_version else ModelKeyState
        headers = [(name, value.encode()) for name, value in row.headers]
        found.append((key, decode(kind, row.value, headers)))
    return found
