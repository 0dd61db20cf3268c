"""Which unfinished jobs still need a model version."""

import sqlalchemy as sa

from jobs.store.files import UNFINISHED
from jobs.tables.jobs import jobs
from registry.models import ModelVersion


def count_unfinished_jobs(connection: sa.Connection, version: ModelVersion) -> int:
    """Return how many jobs with items that have not ended use a version.

    A digest is enough to find them. A legacy version is a mere text, which other models may have:
    such jobs count by the name of their model, too.
    """
    is_pinned = jobs.c.model_version == version.version
    of_several = sa.func.jsonb_path_exists(
        jobs.c.models,
        sa.cast("$.* ? (@.version == $version)", sa.dialects.postgresql.JSONPATH),
        sa.func.jsonb_build_object("version", version.version),
    )
    if version.verification == "legacy":
        is_pinned &= jobs.c.model == version.name
        of_several &= jobs.c.models.has_key(version.name)
    query = sa.select(sa.func.count()).where(
        UNFINISHED, jobs.c.settled_at.is_(None), is_pinned | sa.func.coalesce(of_several, False)
    )
    return connection.scalar(query.select_from(jobs)) or 0
