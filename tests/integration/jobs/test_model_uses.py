"""Goal: every unfinished job that still needs a version is counted, and no other."""

from datetime import UTC, datetime

import sqlalchemy as sa

from jobs.store.model_uses import count_unfinished_jobs
from registry.models import ModelVersion
from tests.integration.jobs.rows import add_job, add_tenant

DIGEST = "ab" * 32


def version(text: str, verification: str) -> ModelVersion:
    now = datetime.now(UTC)
    return ModelVersion("m", text, "p", "vllm", ("/v1/embeddings",), now, verification)


def test_jobs_that_need_a_version_are_counted(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
    signed, legacy = version(DIGEST, "signed"), version("1", "legacy")

    def counts() -> tuple[int, int]:
        with engine.begin() as connection:
            return (
                count_unfinished_jobs(connection, signed),
                count_unfinished_jobs(connection, legacy),
            )

    def add(**columns: object) -> None:
        with engine.begin() as connection:
            add_job(connection, tenant_id, **{"state": "in_progress", "total_count": 1} | columns)

    add(model="other", model_version="2", pool="p")
    add(state="validating", total_count=None)
    add(model="m", model_version=DIGEST, pool="p", settled_at=sa.func.now())
    assert counts() == (0, 0)
    add(model="alias", model_version=DIGEST, pool="p")
    assert counts() == (1, 0)
    add(model="m", model_version="1", pool="p")
    add(model="n", model_version="1", pool="p")  # another model's legacy version
    assert counts() == (1, 1)
    add(models={"alias": {"version": DIGEST, "base_version": ""}, "m": {"version": "1"}})
    add(models={"n": {"version": "1"}})
    assert counts() == (2, 2)
