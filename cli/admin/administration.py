"""What operator commands do to tenants, keys and models: at the database, or over the API.

With a database (`MILLRACE_DATABASE_URL` or `--data`) commands connect to it. Else they call the
API at `MILLRACE_URL` with the operator key in `MILLRACE_OPERATOR_KEY`. Results are the same.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from cli.admin.operator_connections import names_database, transaction
from cli.api_client import DEFAULT_URL, Client, connect, get_json, path_segment, post_json
from cli.exits import CommandError, ExitCode
from core.ids import JOB, KEY, QUARANTINE, TENANT, parse_public_id, public_id
from core.limits import LIST_LIMIT_MAX
from jobs.store.tenant_quarantines import end_quarantine, list_quarantines
from registry.models import ANY_TENANT, list_models, list_versions
from tenancy.api_keys import create_key, revoke_key
from tenancy.listings import list_keys, list_tenants
from tenancy.tenant_changes import change_tenant_limits
from tenancy.tenant_deletion import delete_tenant
from tenancy.tenants import TenantNotFoundError, create_tenant, find_tenant

OPERATOR_KEY_VARIABLE: Final = "MILLRACE_OPERATOR_KEY"

_TENANT_FIELDS: Final = (
    "id",
    "name",
    "stored_bytes_max",
    "response_cache_ttl_s",
    "zero_retention",
    "call_timeout_ms",
    "weight",
    "reserved_shares",
    "priority_class",
    "bulk_hours",
    "infeasible_jobs",
    "degraded_output_tokens_max",
    "degraded_model",
    "created_at",
)
_KEY_FIELDS: Final = ("id", "tenant", "name", "hint", "created_at", "revoked_at")
_QUARANTINE_FIELDS: Final = ("id", "tenant", "pool", "batch_id", "created_at", "ends_at")
_MODEL_FIELDS: Final = (
    "name",
    "version",
    "pool",
    "engine",
    "endpoints",
    "created_at",
    "verification",
    "base_version",
    "retired_at",
)
_NOT_SIGNED: Final = {"verification": "legacy", "base_version": None, "retired_at": None}
"""The fields that an API of a release before signed models does not show."""


class NoInstallationError(CommandError):
    """Neither MILLRACE_DATABASE_URL (or --data) nor MILLRACE_OPERATOR_KEY is set."""

    exit_code = ExitCode.USAGE


@contextmanager
def administration(data: Path | None) -> "Iterator[Administration]":
    """Yield the operations; at the database they are one transaction.

    Raises NoInstallationError, SettingsError, NoStackError.
    """
    key = os.environ.get(OPERATOR_KEY_VARIABLE, "")
    if names_database(data):
        with transaction(data) as connection:
            yield _DatabaseAdministration(connection)
    elif key.strip():
        with connect(os.environ.get("MILLRACE_URL") or DEFAULT_URL, key) as client:
            yield _ApiAdministration(client)
    else:
        raise NoInstallationError


class _DatabaseAdministration:
    """Operations in a transaction of the database, which the caller commits.

    Objects are dicts as `-o json` shows them.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def create_tenant(
        self, name: str, *, stored_bytes_max: int | None, zero_retention: bool
    ) -> str:
        """Create a tenant and return its id."""
        tenant_id = create_tenant(
            self._connection,
            name,
            stored_bytes_max=stored_bytes_max,
            zero_retention=zero_retention,
        )
        return public_id(TENANT, tenant_id)

    def change_tenant(self, name: str, changes: Mapping[str, object]) -> None:
        """Change limits of the tenant with that name. Raises TenantNotFoundError."""
        change_tenant_limits(self._connection, find_tenant(self._connection, name), changes)

    def delete_tenant(self, name: str) -> str:
        """Delete the tenant with that name and return its id. Raises TenantNotFoundError."""
        tenant_id = find_tenant(self._connection, name)
        delete_tenant(self._connection, tenant_id)
        return public_id(TENANT, tenant_id)

    def tenants(self) -> list[dict[str, Any]]:
        """Return all tenants by name."""
        rows, _ = list_tenants(self._connection) or ([], False)
        return _by_name(_shown(row._asdict(), TENANT, _TENANT_FIELDS) for row in rows)

    def create_key(self, tenant: str, name: str) -> tuple[str, str]:
        """Create an API key and return its id and its secret. Raises TenantNotFoundError."""
        key = create_key(self._connection, find_tenant(self._connection, tenant), name)
        return public_id(KEY, key.key_id), key.secret

    def keys(self, tenant: str | None, *, with_revoked: bool) -> list[dict[str, Any]]:
        """Return the keys of a tenant, or of all, oldest first. Raises TenantNotFoundError."""
        tenant_id = None if tenant is None else find_tenant(self._connection, tenant)
        found = list_keys(self._connection, tenant_id=tenant_id, with_revoked=with_revoked)
        rows, _ = found or ([], False)
        return [_shown(row._asdict(), KEY, _KEY_FIELDS) for row in reversed(rows)]

    def revoke_key(self, key_id: str) -> bool:
        """Revoke an API key; return False if no active key has this id."""
        parsed = parse_public_id(KEY, key_id)
        return parsed is not None and revoke_key(self._connection, parsed)

    def models(self, *, all_versions: bool = False) -> list[dict[str, Any]]:
        """Return the version of every model that serves new jobs, or all versions, by name."""
        if all_versions:
            found = list_versions(self._connection)
        else:
            named = list_models(self._connection, tenant_id=ANY_TENANT)
            found = [model for model in named if model.requested_name == model.name]
        return [{name: _as_json(getattr(model, name)) for name in _MODEL_FIELDS} for model in found]

    def quarantines(self) -> list[dict[str, Any]]:
        """Return the active quarantines by id."""
        found = []
        for row in list_quarantines(self._connection):
            renamed = {"created_at": row.began_at, "batch_id": public_id(JOB, row.job_id)}
            found.append(_shown(row._asdict() | renamed, QUARANTINE, _QUARANTINE_FIELDS))
        return found

    def end_quarantine(self, quarantine_id: str) -> bool:
        """End a quarantine; return False if no active one has this id."""
        parsed = parse_public_id(QUARANTINE, quarantine_id)
        return parsed is not None and end_quarantine(self._connection, parsed) is not None


class _ApiAdministration:
    """The same operations by `/v1/admin`, with an operator key."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create_tenant(
        self, name: str, *, stored_bytes_max: int | None, zero_retention: bool
    ) -> str:
        body: dict[str, object] = {"name": name, "zero_retention": zero_retention}
        if stored_bytes_max is not None:
            body["stored_bytes_max"] = stored_bytes_max
        return str(post_json(self._client, "/admin/tenants", body)["id"])

    def change_tenant(self, name: str, changes: Mapping[str, object]) -> None:
        post_json(self._client, self._tenant_path(name), changes)

    def delete_tenant(self, name: str) -> str:
        tenant_id = self._tenant_id(name)
        self._client.delete(f"/admin/tenants/{path_segment(tenant_id)}", cast_to=object)
        return tenant_id

    def tenants(self) -> list[dict[str, Any]]:
        return _by_name(_of(one, _TENANT_FIELDS) for one in self._pages("/admin/tenants"))

    def create_key(self, tenant: str, name: str) -> tuple[str, str]:
        made = post_json(self._client, f"{self._tenant_path(tenant)}/keys", {"name": name})
        return str(made["id"]), str(made["secret"])

    def keys(self, tenant: str | None, *, with_revoked: bool) -> list[dict[str, Any]]:
        tenant_id = None if tenant is None else self._tenant_id(tenant)
        revoked = "true" if with_revoked else None
        newest_first = [*self._pages("/admin/keys", tenant=tenant_id, revoked=revoked)]
        return [_of(one, _KEY_FIELDS) for one in reversed(newest_first)]

    def revoke_key(self, key_id: str) -> bool:
        return parse_public_id(KEY, key_id) is not None and self._delete("/admin/keys", key_id)

    def models(self, *, all_versions: bool = False) -> list[dict[str, Any]]:
        pages = self._pages("/admin/models", all="true" if all_versions else None)
        return [_of({**_NOT_SIGNED, "name": one["id"], **one}, _MODEL_FIELDS) for one in pages]

    def quarantines(self) -> list[dict[str, Any]]:
        return [_of(one, _QUARANTINE_FIELDS) for one in self._pages("/admin/quarantines")]

    def end_quarantine(self, quarantine_id: str) -> bool:
        is_id = parse_public_id(QUARANTINE, quarantine_id) is not None
        return is_id and self._delete("/admin/quarantines", quarantine_id)

    def _delete(self, path: str, public_id_: str) -> bool:
        """Delete an object; return False if it does not exist."""
        import openai

        try:
            self._client.delete(f"{path}/{path_segment(public_id_)}", cast_to=object)
        except openai.NotFoundError:
            return False
        return True

    def _tenant_path(self, name: str) -> str:
        return f"/admin/tenants/{path_segment(self._tenant_id(name))}"

    def _tenant_id(self, name: str) -> str:
        found = get_json(self._client, "/admin/tenants", name=name).get("data") or []
        if not found:
            raise TenantNotFoundError(name=name)
        return str(found[0]["id"])

    def _pages(self, path: str, **parameters: object) -> Iterator[dict[str, Any]]:
        after: object = None
        while True:
            page = get_json(self._client, path, limit=LIST_LIMIT_MAX, after=after, **parameters)
            yield from page.get("data") or []
            after = page.get("last_id")
            if not page.get("has_more"):
                return


Administration: TypeAlias = _DatabaseAdministration | _ApiAdministration
"""Operations on an installation."""


def _by_name(tenants: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(tenants, key=lambda tenant: str(tenant["name"]))


def _of(found: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: found[name] for name in fields}


def _shown(row: Mapping[str, Any], prefix: str, fields: tuple[str, ...]) -> dict[str, Any]:
    shown = {name: _as_json(row[name]) for name in fields}
    return shown | {"id": public_id(prefix, row["id"])}


def _as_json(value: object) -> object:
    if isinstance(value, datetime):
        return int(value.timestamp())
    return list(value) if isinstance(value, tuple) else value
