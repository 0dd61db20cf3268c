"""Alembic's entry point: runs the revisions on the connection of `migrations.runner`."""

from alembic import context

from migrations.schema import SCHEMA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SCHEMA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
