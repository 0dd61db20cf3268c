"""A key that the registry trusts."""

import pytest
import sqlalchemy as sa

from tests.support.registered_models import ModelSigner


@pytest.fixture
def signer(connection: sa.Connection) -> ModelSigner:
    """A key that the registry trusts."""
    signer = ModelSigner()
    signer.trust(connection)
    return signer
