"""Installs what a stack's roles need: topics, schema, models, a tenant and its key."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from cli.stack.served_models import ServedModel
from cli.stack.state.private_files import write_private
from core.errors import RecordUnreadableError
from migrations.runner import upgrade
from registry.models import add_model
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import authenticate, create_key
from tenancy.errors import TenantMissingError
from tenancy.tenants import create_tenant, find_tenant
from topics.clients.admin import TopicAdmin
from topics.errors import TopicDriftError
from topics.records.catalogue import CAPACITY, SHARED_TOPICS, pool_topics
from topics.records.codec import decode
from topics.records.records import Capacity
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

TENANT = "default"
_BROKER_S_MAX = 60.0


def ensure_installed(
    data: Path, kafka: KafkaSettings, database_url: str, models: Sequence[ServedModel]
) -> str:
    """Create topics, upgrade the schema, add models; return the key of the stack's tenant.

    Raises TopicDriftError, KafkaUnavailableError.
    """
    admin = TopicAdmin(kafka)
    admin.wait_for_broker(_BROKER_S_MAX)
    topics = [*SHARED_TOPICS, *(topic for model in models for topic in pool_topics(model.pool))]
    admin.create(topics)
    admin.apply_body_retention(topics)
    if drift := admin.drift(topics):
        raise TopicDriftError("; ".join(drift))
    upgrade(database_url)
    settings = DatabaseSettings.model_validate({"url": database_url})
    engine = create_engine(settings, application_name="millrace-up")
    try:
        with engine.begin() as connection:
            for model in models:
                add_model(
                    connection,
                    model.name,
                    model.version,
                    pool=model.pool,
                    engine=model.engine,
                    endpoints=model.endpoints,
                )
            return _stack_key(data / "key", connection)
    finally:
        engine.dispose()


@contextmanager
def watch_replica_credit(
    kafka: KafkaSettings, expected: Iterable[tuple[str, str]]
) -> Iterator[Callable[[], bool]]:
    """Yield a function that tests whether all expected (pool, class) pairs have granted credit."""
    tail = TopicTailReader(kafka, CAPACITY, client_id="millrace-up")
    tail.seek_to_end(_BROKER_S_MAX)
    missing = set(expected)

    def ready() -> bool:
        for record in tail.poll(0.0):
            try:
                capacity = decode(Capacity, record.value, record.headers)
            except RecordUnreadableError:
                continue
            if capacity.available and any(capacity.granted.values()):
                missing.discard((capacity.pool, capacity.job_class))
        return not missing

    try:
        yield ready
    finally:
        tail.close()


def _stack_key(path: Path, connection: sa.Connection) -> str:
    """Return the key in `path`, or a new one if this database does not accept it."""
    if path.exists():
        stored = path.read_text().strip()
        if authenticate(connection, stored) is not None:
            return stored
    try:
        tenant_id = find_tenant(connection, TENANT)
    except TenantMissingError:
        tenant_id = create_tenant(connection, TENANT)
    key = create_key(connection, tenant_id, "millrace up")
    # Before the commit: a written key that is not committed is replaced at the next start.
    write_private(path, key.secret.encode())
    return key.secret
