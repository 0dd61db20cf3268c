"""What operators do to models: changes of the registry, each with its entry in the audit log.

The registry knows neither jobs nor the audit log, which these functions add.
"""

from typing import Any
from uuid import UUID

import sqlalchemy as sa

from jobs.store.model_uses import count_unfinished_jobs
from registry.errors import CodeNotAllowedError
from registry.manifests.manifest import code_paths, decode_manifest
from registry.models import ModelVersion
from registry.store.acts import AllowsRevision
from registry.store.aliases import remove_name, set_alias
from registry.store.keys import revoke_key, trust_key
from registry.store.model_resolution import Meaning
from registry.store.registration import register_signed_version, register_unverified
from registry.store.retirement import retire
from registry.store.state_publishing import publish_all
from registry.store.state_recovery import FinalStates, RecoveredStates, recover_states
from tenancy.audit_log import Action, Details
from tenancy.installation_log import Operator, record_operator_event, record_tenant_event


def register_model(
    connection: sa.Connection,
    operator: Operator,
    *,
    manifest_bytes: bytes,
    key_id: str,
    allows_code: bool,
    **version: Any,
) -> ModelVersion:
    """Register a signed version; see `register_signed_version` for arguments and errors.

    `allows_code`: the operator allows that replicas run the code among its files, whose number is
    recorded. Raises CodeNotAllowedError for a model with code without it.
    """
    manifest = decode_manifest(manifest_bytes)
    if manifest.allows_code and not allows_code:
        raise CodeNotAllowedError
    registered = register_signed_version(
        connection, manifest_bytes=manifest_bytes, key_id=key_id, **version
    )
    details: dict[str, str | int | None] = {
        "pool": registered.pool,
        "engine": registered.engine,
        "base": registered.base_version,
        "key": key_id,
    }
    if manifest.allows_code:
        details["allowed_code_files"] = len(code_paths(manifest))
    _record(
        connection,
        operator,
        registered.tenant_id,
        Action.MODEL_REGISTERED,
        registered.id,
        details,
    )
    return registered


def add_unverified_model(
    connection: sa.Connection, operator: Operator, **version: Any
) -> ModelVersion:
    """Register a model without files of ours; see `register_unverified`."""
    added = register_unverified(connection, **version)
    details: Details = {"pool": added.pool, "engine": added.engine}
    _record(connection, operator, None, Action.MODEL_REGISTERED, added.id, details)
    return added


def retire_model(
    connection: sa.Connection, operator: Operator, text: str, *, force: bool
) -> ModelVersion:
    """Retire a version, with `force` also while unfinished jobs use it; see `retire`."""
    retired = retire(connection, text, count_jobs=count_unfinished_jobs, force=force)
    details: Details = {"force": force}
    _record(connection, operator, retired.tenant_id, Action.MODEL_RETIRED, retired.id, details)
    return retired


def set_model_alias(
    connection: sa.Connection,
    operator: Operator,
    alias: str,
    target: str,
    *,
    tenant_id: UUID | None = None,
    allows: AllowsRevision | None = None,
) -> Meaning:
    """Let an alias mean a name or a version; see `set_alias`."""
    meaning = set_alias(connection, alias, target, tenant_id=tenant_id, allows=allows)
    details: Details = {"target": meaning.alias_of, "revision": meaning.revision}
    _record(connection, operator, tenant_id, Action.MODEL_ALIAS_SET, alias, details)
    return meaning


def remove_model_name(
    connection: sa.Connection,
    operator: Operator,
    name: str,
    *,
    allows: AllowsRevision | None = None,
) -> Meaning:
    """Let an alias, or the name of a model, mean nothing any more; see `remove_name`."""
    before = remove_name(connection, name, allows=allows)
    target = before.alias_of if before.version is None else before.version.id
    details: Details = {"target": target}
    _record(connection, operator, before.tenant_id, Action.MODEL_NAME_REMOVED, name, details)
    return before


def add_model_key(
    connection: sa.Connection, operator: Operator, pem: bytes, name: str
) -> sa.Row[Any]:
    """Accept signatures by a key; see `trust_key`."""
    key = trust_key(connection, pem, name)
    record_operator_event(connection, operator, Action.MODEL_KEY_ADDED, key.key_id)
    return key


def revoke_model_key(connection: sa.Connection, operator: Operator, key_id: str) -> sa.Row[Any]:
    """Let no signature by a key count any more; see `revoke_key`."""
    key = revoke_key(connection, key_id)
    record_operator_event(connection, operator, Action.MODEL_KEY_REVOKED, key_id)
    return key


def recover_model_states(
    connection: sa.Connection, operator: Operator, final: FinalStates
) -> RecoveredStates:
    """Bring what was retired or revoked back into a restored database; see `recover_states`."""
    recovered = recover_states(connection, final)
    details: Details = {"recovered": True}
    for version in recovered.retired:
        _record(connection, operator, version.tenant_id, Action.MODEL_RETIRED, version.id, details)
    for key_id in recovered.revoked:
        record_operator_event(connection, operator, Action.MODEL_KEY_REVOKED, key_id, details)
    return recovered


def republish_models(connection: sa.Connection, operator: Operator) -> int:
    """Publish the states of all signed versions and keys again; see `publish_all`."""
    count = publish_all(connection)
    details: Details = {"states": count}
    record_operator_event(connection, operator, Action.MODELS_REPUBLISHED, "models", details)
    return count


def _record(
    connection: sa.Connection,
    operator: Operator,
    tenant_id: UUID | None,
    action: Action,
    subject: str,
    details: Details,
) -> None:
    """Record an act, also in the chain of a tenant whose private adapter or alias it is about."""
    if tenant_id is None:
        record_operator_event(connection, operator, action, subject, details)
    else:
        record_tenant_event(connection, operator, tenant_id, action, subject, details)
