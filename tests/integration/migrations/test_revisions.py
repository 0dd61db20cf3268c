"""The revisions against real Postgres: they give the schema that the tables say, and undo."""

from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from migrations.runner import alembic_config
from migrations.schema import SCHEMA


def differences(connection: sa.Connection) -> list[object]:
    """What would have to change so that the database is as the tables say."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return [
        change
        for change in compare_metadata(context, SCHEMA)
        if not (isinstance(change, tuple) and change[0] == "remove_table")  # days of `items`
    ]


def test_revisions_and_tables_agree(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert differences(connection) == []


def test_each_revision_can_be_undone(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), "0001")
        connection.commit()
        command.upgrade(alembic_config(connection), "head")
        connection.commit()
        assert differences(connection) == []


def test_a_batch_has_an_input_file_and_a_request_has_none(engine: sa.Engine) -> None:
    insert = (
        "INSERT INTO jobs (id, tenant_id, kind, endpoint, input_key, input_bytes, "
        "completion_window, expires_at) VALUES (:id, :tenant, :kind, '/v1/embeddings', 'k', 1, "
        "'60s', now())"
    )
    with engine.connect() as connection:
        tenant = uuid4()
        connection.execute(
            sa.text("INSERT INTO tenants (id, name) VALUES (:id, 't')"), {"id": tenant}
        )
        row = {"id": uuid4(), "tenant": tenant, "kind": "request"}
        connection.execute(sa.text(insert), row)
        row |= {"id": uuid4(), "kind": "batch"}
        with pytest.raises(sa.exc.IntegrityError, match="ck_jobs_input_of_its_kind"):
            connection.execute(sa.text(insert), row)
