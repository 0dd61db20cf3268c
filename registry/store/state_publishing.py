"""Publishes states of versions and keys to the topic `models`, by way of the outbox.

A version is registered and then at most retired; a key is trusted and then at most revoked. So the
revision of a state is the number of such acts, and the later one wins for good. On a log that is
newer than a restored database, too: the final state has a key of its own, which the first one never
replaces. `registry.store.state_recovery` brings it back into the database.
"""

import sqlalchemy as sa

from registry.model_version import ModelVersion
from registry.store.name_rows import version_of_row, version_query
from registry.tables import model_keys, model_versions
from storage.postgres.outbox import NOTIFY_OUTBOX, record_insert
from topics.records.catalogue import MODELS
from topics.records.codec import encode, kind_headers
from topics.records.model_states import (
    FINAL_REVISION,
    FIRST_REVISION,
    ModelKeyState,
    ModelState,
    model_state_key,
)


def publish_version(connection: sa.Connection, version: ModelVersion) -> None:
    """Publish the state of a version in the transaction of the act."""
    is_retired = version.retired_at is not None
    state = ModelState(
        version.name,
        version.version,
        version.pool,
        FINAL_REVISION if is_retired else FIRST_REVISION,
        is_retired,
        version.base_version or "",
    )
    _publish(connection, state)


def publish_key(connection: sa.Connection, key_id: str, *, is_revoked: bool) -> None:
    """Publish the state of a key in the transaction of the act."""
    revision = FINAL_REVISION if is_revoked else FIRST_REVISION
    _publish(connection, ModelKeyState(key_id, revision, is_revoked))


def publish_all(connection: sa.Connection) -> int:
    """Publish every signed version and key again, such as for a new log; return their number."""
    signed = version_query().where(model_versions.c.verification == "signed")
    versions = [version_of_row(row) for row in connection.execute(signed)]
    for version in versions:
        publish_version(connection, version)
    keys = connection.execute(sa.select(model_keys.c.key_id, model_keys.c.revoked_at)).all()
    for key_id, revoked_at in keys:
        publish_key(connection, key_id, is_revoked=revoked_at is not None)
    return len(versions) + len(keys)


def _publish(connection: sa.Connection, state: ModelState | ModelKeyState) -> None:
    connection.execute(
        record_insert(
            MODELS.name,
            partition=0,
            key=model_state_key(state),
            headers=kind_headers(type(state)),
            value=encode(state),
        )
    )
    connection.execute(NOTIFY_OUTBOX)
