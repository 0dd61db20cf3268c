"""What every test of this room needs: an engine on a database of its own."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.integration.results.outcomes import engine_of


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = engine_of(database_url)
    yield engine
    engine.dispose()
