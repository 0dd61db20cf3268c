"""Route of the provenance of a batch: which model versions and engines ran its items."""

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import APIRouter, Response

from api.auth.authentication import TenantRequestDep
from api.http.responses import json_response
from core.ids import JOB, parse_public_id, public_id
from jobs.store.batches import find_job
from results.views.provenance_counts import ProvenanceCount, read_provenance

router = APIRouter()


@router.get("/v1/batches/{batch_id}/provenance")
async def show(batch_id: str, request: TenantRequestDep) -> Response:
    """Show which model versions and engines ran the items of a batch."""
    job, found = await request.run(_read, parse_public_id(JOB, batch_id))
    ended: int = job.succeeded + job.failed + job.cancelled + job.expired
    return json_response(
        {
            "object": "list",
            "batch_id": public_id(JOB, job.id),
            "data": [_provenance_object(one) for one in found],
            "unknown_items": max(0, ended - sum(one.item_count for one in found)),
            "has_more": False,
        }
    )


def _read(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None
) -> tuple[sa.Row[Any], list[ProvenanceCount]]:
    """Return a batch and what ran its items. Raises JobNotFoundError, also for foreign ids."""
    job = find_job(connection, tenant_id, job_id)
    return job, read_provenance(connection, job.id)


def _provenance_object(one: ProvenanceCount) -> dict[str, object]:
    return {
        "object": "batch.provenance",
        "model": one.model,
        "version": one.model_version,
        "base_version": one.base_version or None,
        "engine": one.engine or None,
        "items": one.item_count,
    }
