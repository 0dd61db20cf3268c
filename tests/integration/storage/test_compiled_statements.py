"""Goal: the engines of tests share compiled statements (`tests.support.compiled_statements`)."""

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import CacheStats

from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings


def test_a_second_engine_finds_the_statement_of_the_first(database: DatabaseSettings) -> None:
    statement = sa.select(sa.literal(1).label("shared_by_engines"))
    seen = []
    for _ in range(2):
        engine = create_engine(database, application_name="test")
        with engine.connect() as connection:
            seen.append(connection.execute(statement).context.cache_hit)
        engine.dispose()
    assert seen == [CacheStats.CACHE_MISS, CacheStats.CACHE_HIT]
