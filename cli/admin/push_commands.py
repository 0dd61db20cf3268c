"""`millrace models push`: publish a model version to the object store and register it."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa
import typer

from cli.admin.operator_connections import DataOption, object_store, transaction
from cli.admin.version_commands import endpoint_paths
from cli.exits import CommandError, ExitCode
from cli.model_push import PushedModel, push_model
from cli.stack.data_folder import cache_dir
from cli.transfer_display import shown_transfers
from core.errors import SettingsError
from jobs.store.model_acts import register_model
from registry.adapters.adapter_files import AdapterBase
from registry.engine_options.engine_options import check_options
from registry.errors import InvalidModelError
from registry.manifests.manifest import Manifest, code_paths
from registry.models import ENDPOINTS
from registry.pool_names import pool_name
from registry.publishing.folder_manifest import read_options
from registry.publishing.published_version import (
    PublishedSignature,
    is_stored,
    read_signature,
    sign_version,
)
from registry.signing.keys import PublicKey, SigningKey
from registry.sources.fetched_model import Fetcher
from registry.sources.source_names import parse_source
from registry.store.acts import lock_registry
from registry.store.published_objects import ModelObjectsMissingError
from registry.store.version_details import read_manifest, require_model
from tenancy.installation_log import CLI_OPERATOR
from tenancy.tenants import find_tenant

REPLICA_RANK_MAX: Final = 16
"""The default of replicas' `MILLRACE_ENGINE_ADAPTER_RANK_MAX`."""

_LEFT_OUT_SHOWN: Final = 10
_ENDPOINTS_HELP: Final = (
    f"Comma-separated, of {', '.join(ENDPOINTS)}; /v1 may be omitted. By default those of the "
)

_SignOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="File with the private key that signs the version.")
]
_SignatureOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="A signature that was made elsewhere, with --key.")
]
_KeyOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="File with the public key of --signature.")
]
_TenantOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of the tenant that alone may use this adapter.")
]
_RankOption: TypeAlias = Annotated[
    int,
    typer.Option(
        help="Of an adapter: the largest rank that replicas take.",
        envvar="MILLRACE_ENGINE_ADAPTER_RANK_MAX",
    ),
]


class PushDeclinedError(CommandError):
    """The operator did not allow the code of the model, so nothing was published."""

    exit_code = ExitCode.USAGE


def push(  # noqa: PLR0913, PLR0917  one parameter an option
    source: Annotated[
        str, typer.Argument(help="A folder, s3://BUCKET/PREFIX, or hf://ORG/NAME[@REV].")
    ],
    name: Annotated[str, typer.Option(help="The `model` of requests.")],
    sign: _SignOption = None,
    signature: _SignatureOption = None,
    key: _KeyOption = None,
    pool: Annotated[
        str | None, typer.Option(help="Default: of NAME and version; an adapter's: of its base.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Of an adapter: the model it adapts, NAME@VERSION.")
    ] = None,
    tenant: _TenantOption = None,
    rank_max: _RankOption = REPLICA_RANK_MAX,
    options: Annotated[
        Path | None, typer.Option(help="File with engine options of the version, TOML or JSON.")
    ] = None,
    endpoints: Annotated[str | None, typer.Option(help=f"{_ENDPOINTS_HELP}model's files.")] = None,
    allow_code: Annotated[
        bool, typer.Option(help="The model may have Python files, which replicas run.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Hash the stored files; replace those that differ.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask about the code.")] = False,
    data: DataOption = None,
) -> None:
    """Publish a model version: files, manifest and signature to the object store, then the row.

    Files that the store has are not sent again. The version is registered only when every file is
    there; from then on it serves the new jobs of its name.
    """
    engine_options = {} if options is None else read_options(options)
    check_options(engine_options)
    signatures = _read_keys(sign, signature, key)
    adapted, tenant_id = _find_base(base, tenant, rank_max, data)

    def approve(manifest: Manifest) -> Sequence[PublishedSignature]:
        if manifest.allows_code and not yes:
            _confirm_code(manifest)
        return signatures(manifest)

    objects = object_store(data)
    with shown_transfers() as report:
        fetcher = Fetcher(
            downloads=cache_dir(os.environ) / "models" / "downloads",
            env=os.environ,
            allows_code=allow_code,
            report=report,
        )
        pushed = push_model(
            parse_source(source),
            fetcher=fetcher,
            objects=objects,
            approve=approve,
            engine_options=engine_options,
            base=adapted,
            replaces=replace,
        )
    with transaction(data) as connection:
        lock_registry(connection)
        if not is_stored(objects, pushed.published):  # `models collect` removes under this lock
            raise ModelObjectsMissingError("Objects were removed during the push: push again.")
        _register(connection, pushed, name, pool=pool, endpoints=endpoints, tenant_id=tenant_id)
    _print_left_out(pushed.left_out)
    typer.echo(f"{name} {pushed.published.version}")


def _find_base(
    base: str | None, tenant: str | None, rank_max: int, data: Path | None
) -> tuple[AdapterBase | None, UUID | None]:
    """Return the base model of an adapter, and the tenant of a private one.

    Raises SettingsError, ModelNotFoundError, InvalidModelError, TenantNotFoundError.
    """
    if base is None:
        if tenant is not None:
            raise SettingsError("--tenant is for adapters: give --base too")
        return None, None
    with transaction(data) as connection:
        tenant_id = None if tenant is None else find_tenant(connection, tenant)
        return _adapted(connection, base, rank_max), tenant_id


def _read_keys(
    sign: Path | None, signature: Path | None, key: Path | None
) -> Callable[[Manifest], Sequence[PublishedSignature]]:
    """Return what signs a manifest, by files that are read before anything is transferred.

    Raises SettingsError, InvalidKeyError, OSError.
    """
    if (signature is None) != (key is None):
        raise SettingsError("--signature and --key go together")
    if sign is None and signature is None:
        raise SettingsError("give --sign KEY: replicas load no version without a signature")
    pair = None if sign is None else SigningKey.from_pem(sign.read_bytes())
    made = None
    if signature is not None and key is not None:
        made = signature.read_bytes(), PublicKey.from_pem(key.read_bytes())

    def signatures(manifest: Manifest) -> list[PublishedSignature]:
        found = [] if made is None else [read_signature(manifest, *made)]
        return found if pair is None else [sign_version(pair, manifest), *found]

    return signatures


def _adapted(connection: sa.Connection, text: str, rank_max: int) -> AdapterBase:
    """Return the base model of an adapter. Raises ModelNotFoundError, InvalidModelError."""
    model = require_model(connection, text)
    manifest = read_manifest(connection, model)
    if manifest is None or manifest.base is not None or model.retired_at is not None:
        raise InvalidModelError(
            f"{model.id} is no base of adapters: that is a signed model, not retired, and no "
            "adapter itself."
        )
    return AdapterBase(model.version, manifest, rank_max)


def _confirm_code(manifest: Manifest) -> None:
    """Ask the operator. Raises PushDeclinedError, and without a terminal too."""
    typer.echo(f"Replicas will run the code of: {', '.join(code_paths(manifest))}", err=True)
    if not sys.stdin.isatty() or not typer.confirm("Is this code allowed?", err=True):
        raise PushDeclinedError


def _register(
    connection: sa.Connection,
    pushed: PushedModel,
    name: str,
    *,
    pool: str | None,
    endpoints: str | None,
    tenant_id: UUID | None,
) -> None:
    """Register the version and record it; an adapter gets pool and endpoints of its base."""
    published = pushed.published
    manifest = published.manifest
    if pool is None and manifest.base is None:
        pool = pool_name(name, published.version)
    signature = next(one for one in published.signatures if one.lets_load)
    register_model(
        connection,
        CLI_OPERATOR,
        name=name,
        manifest_bytes=published.manifest_bytes,
        bundle=signature.bundle,
        key_id=signature.key.key_id,
        pool=pool,
        endpoints=pushed.endpoints if endpoints is None else endpoint_paths(endpoints),
        tenant_id=tenant_id,
        allows_code=manifest.allows_code,  # which the operator confirmed
    )


def _print_left_out(paths: Sequence[str]) -> None:
    if not paths:
        return
    shown = ", ".join(paths[:_LEFT_OUT_SHOWN])
    more = f" and {len(paths) - _LEFT_OUT_SHOWN} more" if len(paths) > _LEFT_OUT_SHOWN else ""
    typer.echo(f"millrace: left out of the model: {shown}{more}", err=True)
