"""Routes of operators for versions of models.

Names hold slashes, and versions stand behind an @. So a name is the rest of a path, or what stands
before `/retire`; two versions are compared by query parameters.
"""

from typing import Annotated, Final

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from msgspec import Meta

from api.admin.admin_list_routes import ID_CHARS_MAX, page_by_id
from api.admin.operator_requests import IdempotentAdminDep, OperatorRequestDep
from api.admin.tenant_ids import existing_tenant
from api.http.paging import PageDep
from api.http.responses import json_response
from api.idempotent_requests import saved_response
from api.resources import page_object
from api.runtime.object_threads import run_in_store_thread
from jobs.store.keyset_pages import unknown_cursor_error
from jobs.store.model_acts import register_model, retire_model
from registry.model_version import VERIFICATIONS
from registry.model_views import details_object, diff_object, model_object, version_object
from registry.models import (
    ANY_TENANT,
    ENDPOINTS,
    NAME_CHARS_MAX,
    ModelVersion,
    list_models,
    list_versions,
)
from registry.store.published_objects import read_published
from registry.store.version_details import diff_versions, read_details

router = APIRouter()

_TEXT_CHARS_MAX: Final = 2 * NAME_CHARS_MAX + 1
_NO_NUL: Final = "^[^\\x00]*$"

Text = Annotated[str, Meta(max_length=_TEXT_CHARS_MAX)]
TextQuery = Annotated[str, Query(max_length=_TEXT_CHARS_MAX, pattern=_NO_NUL)]
Endpoints = Annotated[list[Text], Meta(max_length=len(ENDPOINTS))]


class NewModelBody(msgspec.Struct, forbid_unknown_fields=True):
    """A version whose files, manifest and signature are in the object store.

    `pool` and `endpoints` may be omitted for an adapter. `tenant`: whose private adapter it is.
    `allow_code`: replicas may run the Python files of the model.
    """

    name: Text
    version: Text
    key: Text
    pool: Text | None = None
    endpoints: Endpoints = []
    tenant: Text | None = None
    allow_code: bool = False


class RetireBody(msgspec.Struct, forbid_unknown_fields=True):
    """`force`: also while unfinished jobs use the version."""

    force: bool = False


@router.get("/v1/admin/models")
async def show_list(
    request: OperatorRequestDep,
    page: PageDep,
    name: TextQuery | None = None,
    verification: Annotated[
        str | None, Query(pattern=f"^({'|'.join(VERIFICATIONS)})$", max_length=20)
    ] = None,
    retired: bool | None = None,
    all_versions: Annotated[bool, Query(alias="all")] = False,
) -> Response:
    """List the version of every model that serves new jobs, by name.

    With `all` or `retired`, list versions instead, by `name@version`.
    """
    if not all_versions and retired is None:
        found = await request.run(_list_serving)
        shown = (
            model_object(model)
            for model in found
            if name in (None, model.name) and verification in (None, model.verification)
        )
        return page_by_id(shown, page)
    if page.after is not None and (len(page.after) > ID_CHARS_MAX or "\x00" in page.after):
        raise unknown_cursor_error()
    versions = await request.run(
        list_versions,
        name=name,
        verification=verification,
        retired=retired,
        after=page.after,
        limit=page.limit + 1,
    )
    rows, has_more = versions[: page.limit], len(versions) > page.limit
    return json_response(page_object(rows, has_more, version_object))


@router.get("/v1/admin/models/{name:path}")
async def show(name: str, request: OperatorRequestDep) -> Response:
    """Show the version that a name, an alias or `name@version` means, with its manifest."""
    return json_response(details_object(await request.run(read_details, name)))


@router.get("/v1/admin/model_diff")
async def show_diff(request: OperatorRequestDep, old: TextQuery, new: TextQuery) -> Response:
    """Show what differs between the manifests of two signed versions."""
    return json_response(diff_object(*await request.run(diff_versions, old, new)))


@router.post("/v1/admin/models")
async def register(request: IdempotentAdminDep) -> Response:
    """Register a signed version, which serves new jobs of its name from then on."""
    body = await request.json_body(NewModelBody)
    objects = request.services.objects
    manifest, bundle = await run_in_store_thread(read_published, objects, body.version, body.key)

    def work(connection: sa.Connection) -> object:
        tenant_id = None if body.tenant is None else existing_tenant(connection, body.tenant)
        model = register_model(
            connection,
            request.operator,
            name=body.name,
            manifest_bytes=manifest,
            bundle=bundle,
            key_id=body.key,
            pool=body.pool,
            endpoints=tuple(body.endpoints),
            tenant_id=tenant_id,
            allows_code=body.allow_code,
        )
        return version_object(model)

    answer, is_replay = await request.execute_once(work)
    return saved_response(answer, is_replay=is_replay)


@router.post("/v1/admin/models/{name:path}/retire")
async def retire(name: str, request: IdempotentAdminDep) -> Response:
    """Retire a version, for good: no replica loads it again, and no new job gets it."""
    body = await request.json_body(RetireBody)

    def work(connection: sa.Connection) -> object:
        return version_object(retire_model(connection, request.operator, name, force=body.force))

    answer, is_replay = await request.execute_once(work)
    return saved_response(answer, is_replay=is_replay)


def _list_serving(connection: sa.Connection) -> list[ModelVersion]:
    """Return the models that serve new jobs, without their aliases."""
    found = list_models(connection, tenant_id=ANY_TENANT)
    return [model for model in found if model.requested_name == model.name]
