"""`millrace recover`: after Postgres was restored to an earlier moment, before the roles start."""

import typer

from cli.admin.operator_connections import DataOption, database_settings, kafka_settings
from jobs.recovery.job_renewal import unvalidated_count
from results.rebuilding.database_restore import recover
from storage.postgres.engines import create_engine


def recover_jobs(data: DataOption = None) -> None:
    """Prepare the start of the roles after Postgres was restored to an earlier moment.

    For operators: talks to Postgres and Kafka itself, and refuses while a results writer runs.
    Unfinished jobs become newer than what the log holds of them, and the results writer's group
    goes back to before the first of them began and to an hour before the last bill. Repeating it
    does no harm.
    """
    engine = create_engine(database_settings(data), application_name="millrace-recover")
    try:
        done = recover(engine, kafka_settings(data))
        with engine.connect() as connection:
            unvalidated = unvalidated_count(connection)
    finally:
        engine.dispose()
    typer.echo(f"jobs {done.job_count} records {done.record_count}")
    if unvalidated:
        said = f"{unvalidated} jobs wait for validation: start intake alone until none does"
        typer.echo(said, err=True)
    if not done.first_is_held:
        said = "the log begins later: repair does the rest of the jobs; bills may be lost"
        typer.echo(said, err=True)
