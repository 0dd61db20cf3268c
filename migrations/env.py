"""Alembic's entry: runs the revisions on the connection that `migrations.upgrade` opened."""

from alembic import context

from jobs import copies_tables, inputs_tables, retries_tables
from jobs import tables as jobs_tables
from registry import tables as registry_tables
from results import call_tables
from results import tables as results_tables
from results.retention import tables as retention_tables
from results.webhooks import tables as webhooks_tables
from storage.metadata import metadata
from tenancy import audit_tables, deletions
from tenancy import tables as tenancy_tables

assert all(  # registered by import
    (
        call_tables,
        audit_tables,
        copies_tables,
        inputs_tables,
        deletions,
        jobs_tables,
        registry_tables,
        results_tables,
        retention_tables,
        retries_tables,
        tenancy_tables,
        webhooks_tables,
    )
)

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
