"""Goal: the rights of the api are enough for every act on models, and not for other changes."""

import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from jobs.store.model_acts import (
    add_model_key,
    register_model,
    remove_model_name,
    retire_model,
    revoke_model_key,
    set_model_alias,
)
from migrations.role_rights import RIGHTS
from registry.models import find_model, list_models
from tenancy.installation_log import Operator
from tenancy.model_refusals import REPEATED_AFTER_S, ModelRefusal, record_model_refusal
from tests.support.registered_models import EMBEDDINGS, ModelSigner, manifest_of

OPERATOR = Operator("opkey_1", "127.0.0.1", "req_1")


@pytest.fixture
def roles(engine: sa.Engine) -> Iterator[dict[str, str]]:
    """Roles of Postgres with the rights of the api and of intake."""
    names = {role: f"test_{role}_{uuid.uuid4().hex[:12]}" for role in ("api", "intake")}
    with engine.begin() as connection:
        for role, name in names.items():
            connection.execute(sa.text(f"CREATE ROLE {name}"))
            connection.execute(sa.text(f"GRANT USAGE ON SCHEMA public TO {name}"))
            for table, rights in RIGHTS[role].items():
                connection.execute(sa.text(f"GRANT {rights} ON {table} TO {name}"))
    yield names
    with engine.begin() as connection:
        for name in names.values():
            connection.execute(sa.text(f"DROP OWNED BY {name}"))
            connection.execute(sa.text(f"DROP ROLE {name}"))


def test_the_api_may_do_every_act_and_intake_may_read(
    engine: sa.Engine, roles: dict[str, str]
) -> None:
    signer = ModelSigner()
    with engine.begin() as connection:
        connection.execute(sa.text(f"SET LOCAL ROLE {roles['api']}"))
        add_model_key(connection, OPERATOR, signer.key.public.pem, "release")
        versions = []
        for content in ("old", "new"):
            data, bundle = signer.sign(manifest_of(content))
            versions.append(
                register_model(
                    connection,
                    OPERATOR,
                    name="m",
                    manifest_bytes=data,
                    bundle=bundle,
                    key_id=signer.key_id,
                    pool="p",
                    endpoints=EMBEDDINGS,
                    allows_code=False,
                )
            )
        set_model_alias(connection, OPERATOR, "prod", "m")
        set_model_alias(connection, OPERATOR, "old", versions[0].id)
        remove_model_name(connection, OPERATOR, "old")
        retire_model(connection, OPERATOR, versions[0].id, force=False)
        revoke_model_key(connection, OPERATOR, signer.key_id)
        refusal = ModelRefusal("p", versions[1].version, "signature")
        assert record_model_refusal(connection, refusal) == REPEATED_AFTER_S
        assert record_model_refusal(connection, refusal) < REPEATED_AFTER_S
    with engine.begin() as connection:
        connection.execute(sa.text(f"SET LOCAL ROLE {roles['intake']}"))
        assert [one.requested_name for one in list_models(connection)] == ["m", "prod"]
        found = find_model(connection, versions[1].id[:14])
        assert found is not None
        assert found.version == versions[1].version


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE model_names SET alias_of = 'x'",
        "DELETE FROM model_versions",
        "UPDATE model_versions SET pool = 'x'",
        "UPDATE model_keys SET pem = 'x'",
        "SELECT value FROM outbox",
    ],
)
def test_the_api_may_change_no_history(
    engine: sa.Engine, roles: dict[str, str], statement: str
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(f"SET LOCAL ROLE {roles['api']}"))
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            connection.execute(sa.text(statement))
