"""Routes of operators for the keys whose signatures of models are accepted."""

from typing import Annotated

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Response
from msgspec import Meta

from api.admin.admin_list_routes import page_by_id
from api.admin.operator_requests import AdminRequestDep, IdempotentAdminDep, OperatorRequestDep
from api.http.paging import PageDep
from api.http.responses import json_response
from api.idempotent_requests import saved_response
from jobs.store.model_acts import add_model_key, revoke_model_key
from registry.model_views import key_object
from registry.store.keys import KEY_NAME_CHARS_MAX, PEM_BYTES_MAX, list_keys

router = APIRouter()


class NewModelKeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A public key in PEM, and a name that lists show."""

    pem: Annotated[str, Meta(max_length=PEM_BYTES_MAX)]
    name: Annotated[str, Meta(max_length=KEY_NAME_CHARS_MAX)]


@router.get("/v1/admin/model_keys")
async def show_list(request: OperatorRequestDep, page: PageDep) -> Response:
    """List the model keys, revoked ones too, by id."""
    rows = await request.run(list_keys)
    return page_by_id((key_object(row) for row in rows), page)


@router.post("/v1/admin/model_keys")
async def add(request: IdempotentAdminDep) -> Response:
    """Accept signatures by a key. Replicas trust only the keys that they have themselves."""
    body = await request.json_body(NewModelKeyBody)

    def work(connection: sa.Connection) -> object:
        return key_object(add_model_key(connection, request.operator, body.pem.encode(), body.name))

    answer, is_replay = await request.execute_once(work)
    return saved_response(answer, is_replay=is_replay)


@router.delete("/v1/admin/model_keys/{model_key}")
async def revoke(model_key: str, request: AdminRequestDep) -> Response:
    """Revoke a model key, for good: its signatures do not count any more."""
    row = await request.run(revoke_model_key, request.operator, model_key)
    return json_response(key_object(row))
