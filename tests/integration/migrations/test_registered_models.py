"""Goal: revision 0039 is not undone while an older release would run the wrong model."""

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.util import CommandError

from jobs.tables.jobs import jobs
from migrations.runner import alembic_config, upgrade
from tests.integration.jobs.rows import add_job, add_tenant

VERSION = "INSERT INTO model_versions (name, version, pool, engine, endpoints{}) VALUES {}"
VALUES = "'m', '1', 'p', 'vllm', '{/v1/embeddings}'"


def go_back(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), "0038")
        connection.commit()


def execute(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("base_version", "'x'"),
        ("tenant_id", "gen_random_uuid()"),
        ("retired_at", "now()"),
    ],
)
def test_versions_that_an_older_release_does_not_know_forbid_it(
    engine: sa.Engine, column: str, value: str
) -> None:
    execute(engine, VERSION.format(f", {column}", f"({VALUES}, {value})"))
    with pytest.raises(CommandError, match=r"m@1 needs .*SELECT name"):
        go_back(engine)


def test_open_jobs_with_several_models_forbid_it(engine: sa.Engine, database_url: str) -> None:
    execute(engine, VERSION.format("", f"({VALUES})"))
    with engine.begin() as connection:
        job_id = add_job(connection, add_tenant(connection), models={})
    with engine.connect() as connection:
        assert connection.scalar(sa.select(jobs.c.state).where(jobs.c.id == job_id)) == "validating"
    with pytest.raises(CommandError, match=f"{job_id} needs"):
        go_back(engine)
    execute(engine, "UPDATE jobs SET state = 'failed'")
    go_back(engine)
    upgrade(database_url)
