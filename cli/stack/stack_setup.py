"""What a stack needs before its roles start: topics, schema, models, a tenant and its key."""

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
from topics.clients.admin import LogAdmin
from topics.errors import TopicDriftError
from topics.records.catalogue import CAPACITY, SHARED_TOPICS, pool_topics
from topics.records.codec import decode
from topics.records.records import Capacity
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail import TopicTail

TENANT = "default"
_BROKER_S_MAX = 60.0


def prepare_installation(
    data: Path, kafka: KafkaSettings, database_url: str, models: Sequence[ServedModel]
) -> str:
    """Bring log and database up to date and return the key of the stack's own tenant.

    Raises TopicDriftError, LogUnavailableError.
    """
    admin = LogAdmin(kafka)
    admin.wait_for_broker(_BROKER_S_MAX)
    wanted = [*SHARED_TOPICS, *(topic for model in models for topic in pool_topics(model.pool))]
    admin.create(wanted)
    admin.keep_bodies(wanted)
    if drift := admin.drift(wanted):
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
            return _kept_key(data / "key", connection)
    finally:
        engine.dispose()


@contextmanager
def watch_replica_credit(
    kafka: KafkaSettings, wanted: Iterable[tuple[str, str]]
) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether credit was granted for all of `wanted`: pool, class."""
    tail = TopicTail(kafka, CAPACITY, client_id="millrace-up")
    tail.skip_to_end(_BROKER_S_MAX)
    waiting = set(wanted)

    def ready() -> bool:
        for record in tail.poll(0.0):
            try:
                capacity = decode(Capacity, record.value, record.headers)
            except RecordUnreadableError:
                continue
            if capacity.available and any(capacity.granted.values()):
                waiting.discard((capacity.pool, capacity.job_class))
        return not waiting

    try:
        yield ready
    finally:
        tail.close()


def _kept_key(path: Path, connection: sa.Connection) -> str:
    """Return the key in `path`, made anew when this database does not know it."""
    if path.exists():
        kept = path.read_text().strip()
        if authenticate(connection, kept) is not None:
            return kept
    try:
        tenant_id = find_tenant(connection, TENANT)
    except TenantMissingError:
        tenant_id = create_tenant(connection, TENANT)
    key = create_key(connection, tenant_id, "millrace up")
    # Before the commit: a written key that was not committed is simply made anew.
    write_private(path, key.secret.encode())
    return key.secret
