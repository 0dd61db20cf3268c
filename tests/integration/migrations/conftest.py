"""A database at the newest revision."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = create_engine(DatabaseSettings(url=SecretStr(database_url)), application_name="test")
    yield engine
    engine.dispose()
