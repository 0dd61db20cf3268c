"""Goal: what was retired or revoked after a backup stays so when the backup is restored."""

import sqlalchemy as sa

from cli.admin.recover_command import model_notes, recover_models
from registry.models import ModelVersion, list_versions
from registry.store.keys import list_keys, revoke_key
from registry.store.registration import add_model
from registry.store.retirement import retire
from tenancy.tables import audit_log
from tests.integration.registry.outbox_states import published
from tests.support.registered_models import EMBEDDINGS, ModelSigner
from topics.clients.producer import RecordProducer
from topics.records.catalogue import MODELS
from topics.records.codec import encode, kind_headers
from topics.records.model_states import ModelKeyState, ModelState, model_state_key
from topics.settings import KafkaSettings


def no_jobs(_connection: sa.Connection, _version: ModelVersion) -> int:
    return 0


def send(producer: RecordProducer, states: list[ModelState | ModelKeyState]) -> None:
    for state in states:
        key, headers = model_state_key(state), kind_headers(type(state))
        producer.send(MODELS.name, encode(state), partition=0, key=key, headers=headers)
    producer.flush(40)


def test_recover_applies_the_final_states_of_the_log(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    kept, revoked, later = ModelSigner(), ModelSigner(), ModelSigner()
    with engine.begin() as connection:
        kept.trust(connection)
        revoked.trust(connection)
        old = kept.register(connection, "m", "old")
        new = kept.register(connection, "m", "new")
        add_model(connection, "legacy", "1", pool="q", engine="simulated", endpoints=EMBEDDINGS)
        backup = [state for _, state in published(connection)]
    with engine.connect() as connection:  # rolled back, as by a restore
        retire(connection, old.id, count_jobs=no_jobs)
        revoke_key(connection, revoked.key_id)
        later.trust(connection)
        revoke_key(connection, later.key_id)
        lost = [state for _, state in published(connection)]
    # What the restored database writes again comes last.
    send(producer, lost + backup)

    recovered = recover_models(engine, kafka)
    with engine.connect() as connection:
        retired = {one.id: one.retired_at is not None for one in list_versions(connection)}
        keys = {row.key_id: row.revoked_at is not None for row in list_keys(connection)}
        events = [
            (row.action, row.subject, row.details["recovered"])
            for row in connection.execute(sa.select(audit_log))
        ]
    assert retired == {old.id: True, new.id: False, "legacy@1": False}
    assert keys == {kept.key_id: False, revoked.key_id: True}
    assert sorted(events) == [
        ("model.retired", old.id, True),
        ("model_key.revoked", revoked.key_id, True),
    ]
    notes = model_notes(recovered)
    assert [note.split(" is ")[0] for note in notes[:2]] == [
        old.id,
        f"the model key {revoked.key_id}",
    ]
    assert notes[2].startswith(later.key_id)
    again = recover_models(engine, kafka)
    assert (again.retired, again.revoked, again.unknown) == ([], [], [later.key_id])
