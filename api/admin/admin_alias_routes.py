"""Routes of operators for aliases of models.

A change names the revision that it was decided on in `If-Match`, as the `ETag` of the alias has it
(RFC 9110, section 13.1.1); without, it is refused (RFC 6585, section 3).
"""

import re
from typing import Annotated, Final

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Header, Response
from msgspec import Meta

from api.admin.admin_list_routes import page_by_id
from api.admin.operator_requests import AdminRequestDep, OperatorRequestDep
from api.admin.tenant_ids import existing_tenant
from api.http.errors import ApiError
from api.http.paging import PageDep
from api.http.request_bodies import json_body
from api.http.responses import json_response
from jobs.store.model_acts import remove_model_name, set_model_alias
from registry.errors import ModelNotFoundError, RevisionMismatchError
from registry.model_views import alias_object
from registry.models import ANY_TENANT, NAME_CHARS_MAX, is_model_text
from registry.store.acts import AllowsRevision
from registry.store.model_resolution import resolve_text
from registry.store.name_rows import LoadedNames, NameRows, name_history

router = APIRouter()

_HISTORY_MAX: Final = 100
_ETAG: Final = re.compile(r'"([1-9][0-9]{0,18})"')

Text = Annotated[str, Meta(max_length=2 * NAME_CHARS_MAX + 1)]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=1000)]


class AliasBody(msgspec.Struct, forbid_unknown_fields=True):
    """What an alias means: a name, which it follows, or `name@version`.

    `tenant`: for that tenant alone, and always for it.
    """

    target: Text
    tenant: Text | None = None


@router.get("/v1/admin/aliases")
async def show_list(request: OperatorRequestDep, page: PageDep) -> Response:
    """List the aliases, by name."""

    def read(connection: sa.Connection) -> list[dict[str, object]]:
        names = LoadedNames(connection)
        return [
            alias_object(alias, names.meanings[alias], resolve_text(alias, names, ANY_TENANT), [])
            for alias in names.aliases
        ]

    return page_by_id(await request.run(read), page)


@router.get("/v1/admin/aliases/{alias:path}")
async def show(alias: str, request: OperatorRequestDep) -> Response:
    """Show an alias, its revision as `ETag`, and since when it meant what."""
    return _response(await request.run(_read_alias, alias))


@router.put("/v1/admin/aliases/{alias:path}")
async def change(alias: str, request: AdminRequestDep, if_match: IfMatch = None) -> Response:
    """Set an alias. To change an existing one, send its `ETag` as `If-Match`."""
    body = await json_body(request.http, AliasBody, request.services.settings)

    def work(connection: sa.Connection) -> dict[str, object]:
        tenant_id = None if body.tenant is None else existing_tenant(connection, body.tenant)
        set_model_alias(
            connection,
            request.operator,
            alias,
            body.target,
            tenant_id=tenant_id,
            allows=_allows(if_match),
        )
        return _read_alias(connection, alias)

    try:
        return _response(await request.run(work))
    except RevisionMismatchError:
        if if_match is not None:
            raise
        message = "The alias exists: send the ETag that you read as If-Match."
        raise ApiError(428, message, code="if_match_required") from None


@router.delete("/v1/admin/aliases/{alias:path}")
async def remove(alias: str, request: AdminRequestDep, if_match: IfMatch = None) -> Response:
    """Remove an alias, at the revision of `If-Match`, or the name of a model (`*`)."""
    try:
        await request.run(remove_model_name, request.operator, alias, allows=_allows(if_match))
    except RevisionMismatchError:
        if if_match is not None:
            raise
        message = "Send the ETag that you read as If-Match, or * for any."
        raise ApiError(428, message, code="if_match_required") from None
    return json_response({"id": alias, "object": "model_alias", "deleted": True})


def _allows(if_match: str | None) -> AllowsRevision:
    """Return which revision may be changed; without a condition, only a name that is not there."""
    if if_match is None:
        return lambda revision: revision == 0
    if if_match.strip() == "*":
        return lambda revision: revision != 0
    revisions = {int(text) for text in _ETAG.findall(if_match)}
    return lambda revision: revision in revisions


def _read_alias(connection: sa.Connection, alias: str) -> dict[str, object]:
    names = NameRows(connection)
    meaning = names.meaning(alias) if is_model_text(alias) else None
    if meaning is None or meaning.alias_of is None:
        raise ModelNotFoundError("No alias has this name.")
    model = resolve_text(alias, names, ANY_TENANT)
    history = name_history(connection, alias, limit=_HISTORY_MAX)
    return alias_object(alias, meaning, model, history)


def _response(alias: dict[str, object]) -> Response:
    return json_response(alias, headers={"etag": f'"{alias["revision"]}"'})
