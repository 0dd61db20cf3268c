"""Creates the topics, schema, models, tenant and API key that the roles of a stack need."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from cli.stack.data_folder import write_private
from cli.stack.served_models import ServedModel
from core.errors import RecordUnreadableError
from migrations.runner import upgrade
from registry.models import add_model
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import authenticate, create_key
from tenancy.tenants import TenantNotFoundError, create_tenant, find_tenant
from topics.clients.admin import TopicAdmin
from topics.errors import TopicDriftError
from topics.records.catalogue import CAPACITY, SHARED_TOPICS, pool_topics
from topics.records.codec import decode
from topics.records.records import Capacity
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

TENANT = "default"
_BROKER_S_MAX = 60.0


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
