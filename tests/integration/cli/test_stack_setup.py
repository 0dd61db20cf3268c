"""Goal: `millrace up` keeps working keys in its data folder, private, and replaces lost ones."""

import stat
from pathlib import Path

import sqlalchemy as sa

from cli.stack.data_folder import OPERATOR_KEY_FILE
from cli.stack.served_models import ServedModel, SignedObjects, served_models
from cli.stack.stack_setup import prepare_installation, register_model
from tenancy.api_keys import authenticate
from tenancy.audit_reading import read_entries
from tenancy.installation_log import INSTALLATION
from tenancy.operator_keys import OperatorRole, authenticate_operator
from tests.support.registered_models import EMBEDDINGS, ModelSigner, manifest_of
from topics.settings import KafkaSettings


def test_keys_are_kept_private_and_replaced(
    kafka_bootstrap: str, topic_prefix: str, database_url: str, tmp_path: Path
) -> None:
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    models = served_models(["m"], "simulated", None)
    path = tmp_path / OPERATOR_KEY_FILE
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)

    def prepare() -> tuple[str, str]:
        """Return the API key and the operator key; both work."""
        key = prepare_installation(tmp_path, kafka, database_url, models)
        with engine.connect() as connection:
            operator = authenticate_operator(connection, path.read_text())
            assert operator is not None
            assert operator.role is OperatorRole.ADMIN
            assert authenticate(connection, key) is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        return key, path.read_text()

    first = prepare()
    assert prepare() == first
    path.write_text("lost")
    assert prepare()[0] == first[0]
    with engine.connect() as connection:
        rows, _ = read_entries(connection, INSTALLATION, after=None, limit=9) or ([], False)
    assert [row.action for row in rows] == [
        "operator_key.created",
        "key.created",
        "tenant.created",
        "operator_key.created",
        "model.registered",
    ]


def test_the_key_of_a_stack_is_recorded_once(engine: sa.Engine) -> None:
    signer, manifests = ModelSigner(), [manifest_of("old"), manifest_of("new")]
    for manifest in (*manifests, manifests[1]):
        data, bundle = signer.sign(manifest)
        signed = SignedObjects(manifest=data, bundle=bundle, key_pem=signer.key.public.pem)
        model = ServedModel(
            name="m",
            version=signer.version(manifest),
            engine="vllm",
            endpoints=EMBEDDINGS,
            signed=signed,
        )
        with engine.begin() as connection:
            register_model(connection, model)
    with engine.connect() as connection:
        rows, _ = read_entries(connection, INSTALLATION, after=None, limit=9) or ([], False)
    assert [row.action for row in reversed(rows)] == [
        "model_key.added",
        "model.registered",
        "model.registered",
    ]
