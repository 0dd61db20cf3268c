"""`millrace recover`: prepare the start of the roles after Postgres was restored."""

from contextlib import closing
from typing import Final

import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, database_settings, kafka_settings
from jobs.recovery.restore_fencing import count_unvalidated_jobs
from jobs.store.model_acts import recover_model_states
from registry.store.state_recovery import FinalStates, RecoveredStates
from results.rebuilding.database_restore import recover
from storage.postgres.engines import create_engine
from tenancy.installation_log import CLI_OPERATOR
from topics.records.catalogue import MODELS
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

_CLIENT: Final = "millrace-recover"
_READ_S_MAX: Final = 60.0


def recover_models(engine: sa.Engine, kafka: KafkaSettings) -> RecoveredStates:
    """Retire and revoke in Postgres what the topic `models` has as retired and revoked.

    Raises KafkaUnavailableError, SchemaTooNewError, and one of DATABASE_UNAVAILABLE.
    """
    final = FinalStates()
    with closing(TopicTailReader(kafka, MODELS, client_id=_CLIENT)) as reader:
        for records in reader.iter_to_end(_READ_S_MAX):
            final.add(records)
    with engine.begin() as connection:
        return recover_model_states(connection, CLI_OPERATOR, final)


def model_notes(states: RecoveredStates) -> list[str]:
    """Return what an operator should know of models after a restore."""
    notes = [f"{version.id} is retired again: its names need another" for version in states.retired]
    notes += [f"the model key {key_id} is revoked again" for key_id in states.revoked]
    notes += [
        f"{text} was added, and retired or revoked, since the backup" for text in states.unknown
    ]
    return notes


def recover_jobs(data: DataOption = None) -> None:
    """Prepare the start of the roles after Postgres was restored to an earlier moment.

    For operators: connects to Postgres and Kafka; fails while a results writer runs. Versions and
    keys that the topic `models` has as retired or revoked become so in Postgres. Unfinished jobs
    get a newer version than their records in the log, and the offsets of the results writer's group
    are reset to before the first of these jobs and to an hour before the last bill. May be
    repeated.
    """
    engine = create_engine(database_settings(data), application_name=_CLIENT)
    kafka = kafka_settings(data)
    try:
        for note in model_notes(recover_models(engine, kafka)):
            typer.echo(note, err=True)
        done = recover(engine, kafka)
        with engine.connect() as connection:
            unvalidated = count_unvalidated_jobs(connection)
    finally:
        engine.dispose()
    typer.echo(f"jobs {done.job_count} records {done.record_count}")
    if unvalidated:
        note = f"{unvalidated} jobs wait for validation: start only intake until none does"
        typer.echo(note, err=True)
    if not done.is_log_complete:
        note = "the log begins later: re-emits do the rest of the jobs; bills may be lost"
        typer.echo(note, err=True)
