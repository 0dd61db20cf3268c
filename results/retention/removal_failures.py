"""What Postgres refuses for one batch is told and counted, so that the others can go on."""

import logging
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from results.retention.metrics import FAILURES

LOG: Final = logging.getLogger(__name__)


def record_removal_failure(job_id: UUID, failure: sa.exc.DBAPIError) -> None:
    """Log and count that a batch stays for now. Raises `failure` when its connection was lost.

    A lock, a timeout or a guard of one batch is that batch's alone; a lost connection is
    everybody's.
    """
    if failure.connection_invalidated:
        raise failure
    FAILURES.inc()
    # No text: messages of the driver quote values.
    code = getattr(failure.orig, "sqlstate", None) or type(failure).__name__
    LOG.warning("a batch stays for now", extra={"job": job_id.hex, "code": code})
