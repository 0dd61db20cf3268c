"""Creates the topics, schema, models, tenant and keys that the roles of a stack need."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from cli.stack.data_folder import OPERATOR_KEY_FILE, write_private
from cli.stack.served_models import ServedModel, SignedObjects
from core.errors import RecordUnreadableError
from migrations.runner import upgrade
from registry.models import add_model, find_model
from registry.signing.keys import PublicKey
from registry.store.keys import is_known_key, trust_key
from registry.store.registration import register_signed_version
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import authenticate, create_key
from tenancy.audit_log import Action
from tenancy.installation_log import CLI_OPERATOR, record_operator_event
from tenancy.operator_keys import OperatorRole, authenticate_operator, create_operator_key
from tenancy.tenants import TenantNotFoundError, create_tenant, find_tenant
from topics.clients.admin import TopicAdmin
from topics.errors import TopicDriftError
from topics.records.catalogue import CAPACITY, SHARED_TOPICS, Topic, pool_topics
from topics.records.codec import decode
from topics.records.records import Capacity
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

TENANT = "default"
_BROKER_S_MAX = 60.0
_CONFIGURATION_S_MAX = 5.0  # the broker may apply it a moment after it answered
_RETRY_S = 0.2


def prepare_installation(
    data: Path, kafka: KafkaSettings, database_url: str, models: Sequence[ServedModel]
) -> str:
    """Create and migrate everything in log and database; return the API key of `TENANT`.

    Raises TopicDriftError, KafkaUnavailableError.
    """
    admin = TopicAdmin(kafka)
    admin.wait_for_broker(_BROKER_S_MAX)
    topics = [*SHARED_TOPICS, *(topic for model in models for topic in pool_topics(model.pool))]
    admin.create(topics)
    admin.apply_configuration(topics)
    _await_configuration(admin, topics)
    upgrade(database_url)
    settings = DatabaseSettings.model_validate({"url": database_url})
    engine = create_engine(settings, application_name="millrace-up")
    try:
        # One transaction each: none takes a lock after that on the installation's audit log.
        for model in models:
            with engine.begin() as connection:
                register_model(connection, model)
        with engine.begin() as connection:
            _save_operator_key(data / OPERATOR_KEY_FILE, connection)
        with engine.begin() as connection:
            return _saved_key(data / "key", connection)
    finally:
        engine.dispose()


@contextmanager
def watch_replica_credit(
    kafka: KafkaSettings, pool_classes: Iterable[tuple[str, str]]
) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether each pool has granted credit for its job class."""
    tail = TopicTailReader(kafka, CAPACITY, client_id="millrace-up")
    tail.seek_to_end(_BROKER_S_MAX)
    waiting = set(pool_classes)

    def has_credit() -> bool:
        for record in tail.poll(0.0):
            try:
                capacity = decode(Capacity, record.value, record.headers)
            except RecordUnreadableError:
                continue
            if capacity.available and any(capacity.granted.values()):
                waiting.discard((capacity.pool, capacity.job_class))
        return not waiting

    try:
        yield has_credit
    finally:
        tail.close()


def register_model(connection: sa.Connection, model: ServedModel) -> None:
    """Register a model; record it unless this version served before, and its key if it is new."""
    before = find_model(connection, model.name)
    new_key = None
    if model.signed is not None:
        new_key = _register_signed(connection, model, model.signed)
    else:
        add_model(
            connection,
            model.name,
            model.version,
            pool=model.pool,
            engine=model.engine,
            endpoints=model.endpoints,
        )
    if new_key is not None:
        record_operator_event(connection, CLI_OPERATOR, Action.MODEL_KEY_ADDED, new_key)
    if before is None or before.version != model.version:
        subject, details = f"{model.name}@{model.version}", {"pool": model.pool}
        details["engine"] = model.engine
        record_operator_event(connection, CLI_OPERATOR, Action.MODEL_REGISTERED, subject, details)


def _register_signed(
    connection: sa.Connection, model: ServedModel, signed: SignedObjects
) -> str | None:
    """Register a version that the key of the stack has signed, which the installation trusts.

    Return the id of the key if it was not trusted before.
    """
    key = PublicKey.from_pem(signed.key_pem)
    is_new = not is_known_key(connection, key.key_id)
    trust_key(connection, key.pem, "millrace up")
    register_signed_version(
        connection,
        name=model.name,
        manifest_bytes=signed.manifest,
        bundle=signed.bundle,
        key_id=key.key_id,
        pool=model.pool,
        endpoints=model.endpoints,
    )
    return key.key_id if is_new else None


def _save_operator_key(path: Path, connection: sa.Connection) -> None:
    """Write an operator key with the role admin, unless the one in `path` works."""
    saved = path.read_text().strip() if path.exists() else ""
    if authenticate_operator(connection, saved) is not None:
        return
    key = create_operator_key(connection, "millrace up", OperatorRole.ADMIN)
    write_private(path, key.secret.encode())  # before the commit, like the key of `TENANT`


def _saved_key(path: Path, connection: sa.Connection) -> str:
    """Return the key in `path`; create one when there is none or the database does not know it."""
    if path.exists():
        key_text = path.read_text().strip()
        if authenticate(connection, key_text) is not None:
            return key_text
    try:
        tenant_id = find_tenant(connection, TENANT)
    except TenantNotFoundError:
        tenant_id = create_tenant(connection, TENANT)
    key = create_key(connection, tenant_id, "millrace up")
    # Before the commit: the next start replaces a key that was written and not committed.
    write_private(path, key.secret.encode())
    return key.secret


def _await_configuration(admin: TopicAdmin, topics: Sequence[Topic]) -> None:
    give_up_at_s = time.monotonic() + _CONFIGURATION_S_MAX
    while drift := admin.drift(topics):
        if time.monotonic() > give_up_at_s:
            raise TopicDriftError("; ".join(drift))
        time.sleep(_RETRY_S)
