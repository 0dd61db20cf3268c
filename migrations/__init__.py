"""Alembic revisions of the whole schema."""
