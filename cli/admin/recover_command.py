"""`millrace recover`: prepare the roles' start after a restore of Postgres."""

import typer

from cli.admin.operator_connections import DataOption, database_settings, kafka_settings
from jobs.recovery.restore_fencing import count_unvalidated_jobs
from results.rebuilding.database_restore import recover
from storage.postgres.engines import create_engine


def recover_jobs(data: DataOption = None) -> None:
    """Prepare the start of the roles after Postgres was restored to an earlier moment.

    For operators: connects to Postgres and Kafka; fails while a results writer runs. Unfinished
    jobs get a newer version than their records in the log, and the offsets of the results writer's
    group are reset to before the first of these jobs and to an hour before the last bill. May be
    repeated.
    """
    engine = create_engine(database_settings(data), application_name="millrace-recover")
    try:
        done = recover(engine, kafka_settings(data))
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
