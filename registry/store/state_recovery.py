"""Applies final states of the topic `models` to a database that was restored to an earlier moment.

What was retired or revoked after the backup stays so: the log, which is newer, knows it. Of a
version or key that the database does not have, only the log can tell; replicas go on refusing it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from core.errors import RecordUnreadableError
from registry.model_version import ModelVersion
from registry.store.acts import lock_registry
from registry.store.name_rows import version_of_row, version_query
from registry.tables import model_keys, model_versions
from topics.records.codec import decode_value, kind_of
from topics.records.kinds import KINDS
from topics.records.model_states import ModelKeyState, ModelState
from topics.records.received_record import ReceivedRecord

_KEYS: Final = sa.select(model_keys.c.key_id, model_keys.c.revoked_at)


@dataclass(slots=True)
class FinalStates:
    """The versions that the topic has as retired, and the keys that it has as revoked."""

    versions: set[tuple[str, str]] = field(default_factory=set)  # name and version
    keys: set[str] = field(default_factory=set)

    def add(self, records: Iterable[ReceivedRecord]) -> None:
        """Add the final states of some records; records that cannot be read are skipped.

        Raises SchemaTooNewError.
        """
        for record in records:
            if record.value is None:
                continue
            try:
                self._add(kind_of(record.headers), record.value)
            except RecordUnreadableError:
                continue

    def _add(self, kind: str | None, value: bytes) -> None:
        if kind == KINDS[ModelState]:
            version = decode_value(ModelState, value)
            if version.retired:
                self.versions.add((version.name, version.version))
        elif kind == KINDS[ModelKeyState]:
            key = decode_value(ModelKeyState, value)
            if key.revoked:
                self.keys.add(key.key_id)


@dataclass(frozen=True, slots=True)
class RecoveredStates:
    """What `recover_states` found."""

    retired: list[ModelVersion]  # versions that it retired
    revoked: list[str]  # ids of keys that it revoked
    unknown: list[str]  # versions and keys that the database does not have


def recover_states(connection: sa.Connection, final: FinalStates) -> RecoveredStates:
    """Retire and revoke in the database what is retired and revoked on the topic. Repeatable.

    Other than `retire` it asks for no names or jobs: the act was allowed when it was done. A name
    that means a retired version gives new jobs nothing until it means another one.
    """
    lock_registry(connection)
    retired: list[ModelVersion] = []
    unknown: list[str] = []
    for name, version in sorted(final.versions):
        is_version = (model_versions.c.name == name) & (model_versions.c.version == version)
        row = connection.execute(version_query().where(is_version)).one_or_none()
        if row is None:
            unknown.append(f"{name}@{version}")
        elif version_of_row(row).retired_at is None:
            retire_it = sa.update(model_versions).where(is_version)
            connection.execute(retire_it.values(retired_at=sa.func.clock_timestamp()))
            row = connection.execute(version_query().where(is_version)).one()
            retired.append(version_of_row(row))
    are_final = model_keys.c.key_id.in_(final.keys)
    known = {row.key_id: row.revoked_at for row in connection.execute(_KEYS.where(are_final))}
    revoked = sorted(key_id for key_id, revoked_at in known.items() if revoked_at is None)
    connection.execute(
        sa.update(model_keys)
        .where(model_keys.c.key_id.in_(revoked))
        .values(revoked_at=sa.func.clock_timestamp())
    )
    return RecoveredStates(retired, revoked, unknown + sorted(final.keys - known.keys()))
