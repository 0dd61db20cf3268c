"""Alembic revisions of the database schema, and the upgrade command."""
