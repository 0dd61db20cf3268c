"""Routes of operators for tenants and their API keys. They show no data of a tenant."""

from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from msgspec import UNSET, Meta, UnsetType

from api.admin.operator_requests import AdminRequestDep, IdempotentAdminDep, OperatorRequestDep
from api.admin.saved_secrets import encrypt_secret, with_plain_secret
from api.http.errors import ApiError
from api.http.paging import PageDep, page_response
from api.http.responses import json_response
from api.idempotent_requests import saved_response
from api.resources import seconds
from core.bulk_hours import BULK_HOURS_CHARS_MAX
from core.ids import KEY, TENANT, parse_public_id, public_id
from core.tenant_claims import PriorityClass
from tenancy.api_keys import create_key, revoke_key
from tenancy.listings import key_row, list_keys, list_tenants, tenant_row
from tenancy.reserved_shares import POOLS_MAX
from tenancy.response_cache import TTL_S_MAX
from tenancy.tenant_changes import change_tenant_limits
from tenancy.tenant_deletion import delete_tenant
from tenancy.tenants import (
    NAME_CHARS_MAX,
    OUTPUT_TOKENS_MAX,
    WEIGHT_MAX,
    InfeasibleJobs,
    TenantNotFoundError,
    create_tenant,
)

router = APIRouter()

CALL_TIMEOUT_MS_MAX: Final = 86_400_000

Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
StoredBytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CallTimeoutMs = Annotated[int, Meta(ge=1, le=CALL_TIMEOUT_MS_MAX)]
ReservedShares = Annotated[dict[str, float], Meta(max_length=POOLS_MAX)]
Weight = Annotated[int, Meta(ge=1, le=WEIGHT_MAX)]
BulkHours = Annotated[str, Meta(min_length=1, max_length=BULK_HOURS_CHARS_MAX)]
OutputTokens = Annotated[int, Meta(ge=1, le=OUTPUT_TOKENS_MAX)]
ModelName = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
CacheTtlS = Annotated[int, Meta(ge=1, le=TTL_S_MAX)]


class NewTenantBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new tenant; without `stored_bytes_max` the default of the installation applies."""

    name: Name
    stored_bytes_max: StoredBytes | None = None
    zero_retention: bool = False


class TenantChangeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The fields to change; null is the installation's default, or off."""

    stored_bytes_max: StoredBytes | UnsetType | None = UNSET
    zero_retention: bool | UnsetType = UNSET
    call_timeout_ms: CallTimeoutMs | UnsetType | None = UNSET
    response_cache_ttl_s: CacheTtlS | UnsetType | None = UNSET
    weight: Weight | UnsetType = UNSET
    reserved_shares: ReservedShares | UnsetType = UNSET
    priority_class: PriorityClass | UnsetType = UNSET
    bulk_hours: BulkHours | UnsetType | None = UNSET
    infeasible_jobs: InfeasibleJobs | UnsetType = UNSET
    degraded_output_tokens_max: OutputTokens | UnsetType | None = UNSET
    degraded_model: ModelName | UnsetType | None = UNSET


class NewKeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new key of a tenant; the name is shown in lists."""

    name: Name = ""


@router.post("/v1/admin/tenants")
async def create(request: IdempotentAdminDep) -> Response:
    """Create a tenant."""
    body = await request.json_body(NewTenantBody)

    def work(connection: sa.Connection) -> object:
        tenant_id = create_tenant(
            connection,
            body.name,
            stored_bytes_max=body.stored_bytes_max,
            zero_retention=body.zero_retention,
            operator=request.operator,
        )
        return tenant_object(_existing_tenant(connection, tenant_id))

    answer, is_replay = await request.execute_once(work)
    return saved_response(answer, is_replay=is_replay)


@router.get("/v1/admin/tenants")
async def show_list(
    request: OperatorRequestDep,
    page: PageDep,
    name: Annotated[str | None, Query(max_length=NAME_CHARS_MAX, pattern="^[^\\x00]*$")] = None,
) -> Response:
    """List tenants, newest first, or the one with a name."""
    after = page.after_row(TENANT)
    found = await request.run(list_tenants, name=name, after=after, limit=page.limit)
    return page_response(found, tenant_object)


@router.get("/v1/admin/tenants/{tenant_id}")
async def show(tenant_id: str, request: OperatorRequestDep) -> Response:
    """Show a tenant with its limits."""
    return json_response(tenant_object(await request.run(_existing_tenant, _parsed(tenant_id))))


@router.post("/v1/admin/tenants/{tenant_id}")
async def change(tenant_id: str, request: IdempotentAdminDep) -> Response:
    """Change limits of a tenant; omitted fields stay the same."""
    fields = msgspec.structs.asdict(await request.json_body(TenantChangeBody))
    changes = {name: value for name, value in fields.items() if value is not UNSET}
    parsed_id = _parsed(tenant_id)

    def work(connection: sa.Connection) -> object:
        _existing_tenant(connection, parsed_id)
        change_tenant_limits(connection, parsed_id, changes, request.operator)
        return tenant_object(_existing_tenant(connection, parsed_id))

    answer, is_replay = await request.execute_once(work)
    return saved_response(answer, is_replay=is_replay)


@router.delete("/v1/admin/tenants/{tenant_id}")
async def delete(tenant_id: str, request: AdminRequestDep) -> Response:
    """Delete a tenant with its keys at once, and with all its data soon."""
    parsed_id = _parsed(tenant_id)
    await request.run(delete_tenant, parsed_id, request.operator)
    deleted = {"id": public_id(TENANT, parsed_id), "object": "tenant", "deleted": True}
    return json_response(deleted)


@router.post("/v1/admin/tenants/{tenant_id}/keys")
async def create_tenant_key(tenant_id: str, request: IdempotentAdminDep) -> Response:
    """Create an API key of a tenant. Only this response and its replays contain the secret."""
    body = await request.json_body(NewKeyBody)
    parsed_id = _parsed(tenant_id)

    def work(connection: sa.Connection) -> object:
        _existing_tenant(connection, parsed_id)
        key = create_key(connection, parsed_id, body.name, request.operator)
        encrypted = encrypt_secret(request.secret, request.principal, key)
        return {**key_object(key_row(connection, key.key_id)), "secret": encrypted}

    answer, is_replay = await request.execute_once(work)
    plain = with_plain_secret(request.secret, request.principal, answer)
    return saved_response(plain, is_replay=is_replay)


@router.get("/v1/admin/keys")
async def show_keys(
    request: OperatorRequestDep,
    page: PageDep,
    tenant: str | None = None,
    revoked: bool = False,
) -> Response:
    """List API keys, newest first, of one tenant or of all; never their secrets."""
    of_tenant = None if tenant is None else _parsed(tenant)

    def read(connection: sa.Connection) -> tuple[list[sa.Row[Any]], bool] | None:
        if of_tenant is not None:
            _existing_tenant(connection, of_tenant)
        return list_keys(
            connection,
            tenant_id=of_tenant,
            with_revoked=revoked,
            after=page.after_row(KEY),
            limit=page.limit,
        )

    return page_response(await request.run(read), key_object)


@router.delete("/v1/admin/keys/{key_id}")
async def revoke(key_id: str, request: AdminRequestDep) -> Response:
    """Revoke an API key permanently."""
    parsed_id = parse_public_id(KEY, key_id)

    def work(connection: sa.Connection) -> sa.Row[Any] | None:
        if parsed_id is None or not revoke_key(connection, parsed_id, request.operator):
            return None
        return key_row(connection, parsed_id)

    row = await request.run(work)
    if row is None:
        raise ApiError(404, "No active key has this id.", code="key_not_found")
    return json_response(key_object(row))


def tenant_object(row: Any) -> dict[str, object]:
    """Return a tenant with its limits; null is the installation's default, or off."""
    return {
        "id": public_id(TENANT, row.id),
        "object": "tenant",
        "created_at": seconds(row.created_at),
        "name": row.name,
        "stored_bytes_max": row.stored_bytes_max,
        "zero_retention": row.zero_retention,
        "call_timeout_ms": row.call_timeout_ms,
        "response_cache_ttl_s": row.response_cache_ttl_s,
        "weight": row.weight,
        "reserved_shares": row.reserved_shares,
        "priority_class": row.priority_class,
        "bulk_hours": row.bulk_hours,
        "infeasible_jobs": row.infeasible_jobs,
        "degraded_output_tokens_max": row.degraded_output_tokens_max,
        "degraded_model": row.degraded_model,
    }


def key_object(row: Any) -> dict[str, object]:
    """Return an API key without its secret."""
    return {
        "id": public_id(KEY, row.id),
        "object": "api_key",
        "created_at": seconds(row.created_at),
        "revoked_at": seconds(row.revoked_at),
        "tenant_id": public_id(TENANT, row.tenant_id),
        "tenant": row.tenant,
        "name": row.name,
        "hint": row.hint,
    }


def _parsed(tenant_id: str) -> UUID:
    """Return the id of a tenant. Raises TenantNotFoundError."""
    parsed = parse_public_id(TENANT, tenant_id)
    if parsed is None:
        raise TenantNotFoundError
    return parsed


def _existing_tenant(connection: sa.Connection, tenant_id: UUID) -> sa.Row[Any]:
    row = tenant_row(connection, tenant_id)
    if row is None:
        raise TenantNotFoundError
    return row
