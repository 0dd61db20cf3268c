"""The version and engine in the line of an item, by the number of its provenance.

"millrace":{"version":"0f3c9a…","engine":"77ab01…"}
"""

from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.shown_versions import short_digest
from storage.postgres.items import job_provenance


def shown_provenance(model_version: str, engine: str) -> dict[str, str]:
    """Return the `millrace` object of an item; without `engine` if that is not known."""
    shown = {"version": short_digest(model_version)}
    if engine:
        shown["engine"] = short_digest(engine)
    return shown


def line_tag(model_version: str, engine: str) -> bytes:
    """Return the last field of a line, with the comma before it."""
    return b',"millrace":' + msgspec.json.encode(shown_provenance(model_version, engine))


def read_line_tags(connection: sa.Connection, job_id: UUID) -> dict[int, bytes]:
    """Return the last field of lines by the number of their provenance.

    Read it after the rows: a row is never committed before its number.
    """
    columns = job_provenance.c
    query = sa.select(columns.number, columns.model_version, columns.engine)
    rows = connection.execute(query.where(columns.job_id == job_id))
    return {row.number: line_tag(row.model_version, row.engine) for row in rows}
