"""Lets the engines of all tests share compiled statements.

Each test has engines of its own, and an engine compiles each statement anew: an eighth of the CPU
of the workers.
"""

from functools import partial
from typing import Any, Final

import sqlalchemy
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.util import LRUCache

_COMPILED: Final = LRUCache[Any, Any](4000)


def share_compiled_statements() -> None:
    """Give each engine that is created from now on the same `compiled_cache`.

    The dialect is a part of the cache's keys, and each engine has an instance of it.
    """
    PGDialect_psycopg.__hash__ = _hash_of_dialect  # type: ignore[method-assign,assignment]
    PGDialect_psycopg.__eq__ = _are_alike  # type: ignore[method-assign,assignment]
    options = {"compiled_cache": _COMPILED}
    sqlalchemy.create_engine = partial(sqlalchemy.create_engine, execution_options=options)


def _hash_of_dialect(_: PGDialect_psycopg) -> int:
    return hash(PGDialect_psycopg)


def _are_alike(one: PGDialect_psycopg, other: object) -> bool:
    return type(one) is type(other) and _options(one) == _options(other)


def _options(dialect: Any) -> tuple[object, ...]:
    """Return what compiled statements depend on."""
    serializers = dialect._json_serializer, dialect._json_deserializer
    return dialect.server_version_info, dialect.paramstyle, *serializers
