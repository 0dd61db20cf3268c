"""Routes of operators for models without files, and for checks and memory plans of versions."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from msgspec import Meta

from api.admin.admin_model_routes import Endpoints, Text, TextQuery
from api.admin.operator_requests import IdempotentAdminDep, OperatorRequestDep
from api.http.responses import json_response
from api.idempotent_requests import saved_response
from api.runtime.object_threads import run_in_store_thread
from jobs.store.model_acts import add_unverified_model
from registry.errors import InvalidModelError
from registry.memory_plan.memory_plan import MEMORY_SHARE, MemoryPlan
from registry.memory_plan.model_folder_plan import plan_of_folder
from registry.memory_plan.plan_document import plan_document
from registry.model_views import version_object
from registry.pool_names import pool_name
from registry.publishing.stored_plan import plan_stored
from registry.store.version_check import CheckedPart, check_version, read_version_to_check
from registry.store.version_details import read_plannable
from registry.unverified_version import unverified_version
from storage.objects.object_store import ObjectStore

router = APIRouter()

CHECKED_BYTES_MAX: Final = 32 * 2**30
"""Bytes of a version that the API reads again, in about half a minute."""

_UPSTREAM_CHARS_MAX: Final = 2_048
_GIB: Final = 2**30


class UnverifiedModelBody(msgspec.Struct, forbid_unknown_fields=True):
    """A model that an HTTP server or a simulated engine answers.

    `options` are what else tells it from others; the version is a digest of engine, upstream and
    options. Without `pool` it has one of its own.
    """

    name: Text
    engine: Annotated[str, Meta(max_length=20)]
    endpoints: Endpoints
    upstream: Annotated[str, Meta(max_length=_UPSTREAM_CHARS_MAX)] = ""
    options: dict[str, Any] = {}
    pool: Text | None = None


@router.post("/v1/admin/unverified_models")
async def add(request: IdempotentAdminDep) -> Response:
    """Register a version of a model without files of ours, which serves new jobs from then on."""
    body = await request.json_body(UnverifiedModelBody)
    version = unverified_version(body.engine, body.upstream, body.options)

    def work(connection: sa.Connection) -> object:
        added = add_unverified_model(
            connection,
            request.operator,
            name=body.name,
            engine=body.engine,
            url=body.upstream,
            options=body.options,
            pool=body.pool or pool_name(body.name, version),
            endpoints=tuple(body.endpoints),
        )
        return version_object(added)

    answer, is_replay = await request.execute_once(work)
    return saved_response(answer, is_replay=is_replay)


@router.get("/v1/admin/model_check")
async def check(request: OperatorRequestDep, model: TextQuery) -> Response:
    """Read every file of a version again, and check its digests, signatures and keys."""
    known = await request.run(read_version_to_check, model)
    if known.file_bytes > CHECKED_BYTES_MAX:
        gib = CHECKED_BYTES_MAX // _GIB
        raise InvalidModelError(
            f"The version has more than {gib} GiB: use `millrace models verify`."
        )
    parts: list[CheckedPart] = []
    objects = request.services.objects
    is_sound = await run_in_store_thread(check_version, objects, known, parts.append)
    return json_response(
        {
            "object": "model_check",
            "model": model,
            "version": known.version,
            "is_sound": is_sound,
            "parts": [asdict(part) for part in parts],
        }
    )


@router.get("/v1/admin/model_plan")
async def plan(
    request: OperatorRequestDep,
    model: TextQuery,
    device_gib: Annotated[float, Query(ge=0.1, le=10_000)] = 80.0,
    memory_share: Annotated[float, Query(ge=0.01, le=1)] = MEMORY_SHARE,
) -> Response:
    """Show what a version needs of a GPU's memory, and what is left for its KV cache."""
    manifest = await request.run(read_plannable, model)
    objects: ObjectStore = request.services.objects

    def plan_folder(folder: Path, options: Mapping[str, Any]) -> MemoryPlan:
        return plan_of_folder(folder, options, int(device_gib * _GIB), memory_share)

    found = await run_in_store_thread(plan_stored, objects, manifest, plan_folder)
    return json_response({"object": "memory_plan", "model": model} | plan_document(found))
