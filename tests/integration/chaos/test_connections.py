"""Goal: Postgres without free connections is unavailable, and recovers once they are freed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from benchmarks.stacks.services import running_postgres
from chaos.faults.connections import exhaust_connections
from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine
from storage.postgres.settings import DatabaseSettings


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster of this test alone, since the test takes all its connections."""
    with running_postgres(tmp_path) as postgres:
        yield postgres.address


def test_all_connections_are_taken_and_freed(own_postgres: str) -> None:
    settings = DatabaseSettings.model_validate({"url": own_postgres, "pool_size": 4})
    engine = create_engine(settings, application_name="test")
    query = sa.text("SELECT 1")
    with engine.connect() as used, engine.connect():
        used.execute(query)
        heal = exhaust_connections(own_postgres)
        with pytest.raises(DATABASE_UNAVAILABLE):
            used.execute(query)
    for _ in range(8):  # idle connections of the pool as well
        with pytest.raises(DATABASE_UNAVAILABLE, match="too many clients"):
            engine.connect()

    heal()

    with engine.connect() as connection:
        assert connection.execute(query).scalar_one() == 1
    engine.dispose()
