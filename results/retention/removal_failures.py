"""Records removals of one batch that Postgres refuses, so that other batches continue."""

import logging
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from results.retention.metrics import FAILURES

LOG: Final = logging.getLogger(__name__)


def record_removal_failure(job_id: UUID, failure: sa.exc.DBAPIError) -> None:
    """Log and count a refused removal. Raises `failure` when its connection was lost.

    A lock, a timeout or a guard concerns one batch; a lost connection concerns all.
    """
    if failure.connection_invalidated:
        raise failure
    FAILURES.inc()
    # Without its text: the driver's messages quote values.
    code = getattr(failure.orig, "sqlstate", None) or type(failure).__name__
    LOG.warning("a batch stays for now", extra={"job": job_id.hex, "code": code})
