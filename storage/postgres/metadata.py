"""The one `MetaData` of all tables, and the type of their timestamps."""

from typing import Final

from sqlalchemy import DateTime, MetaData

Timestamp: Final = DateTime(timezone=True)

# Names derive from the columns, so that a migration can drop a constraint on any database.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = MetaData(naming_convention=NAMING_CONVENTION)
"""The tables of all packages; Alembic compares the database with it."""
