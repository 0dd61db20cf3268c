"""`millrace models add` and `sbom`: register a version without files; list a version's parts."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.admin.operator_connections import DataOption, transaction
from cli.exits import NotFoundError
from cli.stack.secret_arguments import refuse_secret
from core.errors import SettingsError
from registry.models import ENDPOINTS, ENGINES, add_model
from registry.pool_names import pool_name
from registry.publishing.bill_of_materials import bill_of_materials
from registry.publishing.folder_manifest import read_options
from registry.store.registration import register_unverified
from registry.store.version_details import read_manifest, require_model
from registry.unverified_version import unverified_version
from tenancy.audit_log import Action
from tenancy.installation_log import CLI_OPERATOR, record_operator_event


class NoManifestError(NotFoundError):
    """The version has no manifest: it is not signed."""


def add(  # noqa: PLR0913, PLR0917  one parameter an option
    name: Annotated[str, typer.Argument(help="The `model` of requests.")],
    engine: Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")],
    endpoints: Annotated[
        str,
        typer.Option(help=f"Comma-separated, of {', '.join(ENDPOINTS)}; /v1 may be omitted."),
    ],
    version: Annotated[
        str | None,
        typer.Option(
            help="A name of these weights whose meaning is fixed, as in releases before signed "
            "versions. Default: a digest of engine, --upstream and --options."
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help="MILLRACE_GPU_POOL of its replicas; part of topic names. Default: of NAME and "
            "version."
        ),
    ] = None,
    upstream: Annotated[str, typer.Option(help="openai_http: base URL of the upstream.")] = "",
    options: Annotated[
        Path | None,
        typer.Option(help="File with what else tells this model from others, TOML or JSON."),
    ] = None,
    data: DataOption = None,
) -> None:
    """Register a version of a model whose files are not ours: HTTP servers and simulated ones.

    The newest version of a name serves new jobs. A version never changes: adding it again does
    nothing, and fails when a field differs. A new pool needs its topics: `millrace topics create`.
    """
    refuse_secret("--upstream", upstream)
    paths = endpoint_paths(endpoints)
    if version is None and engine == "vllm":
        raise SettingsError("--engine vllm: use `millrace models push`, which signs the files")
    if version is not None and (upstream or options is not None):
        raise SettingsError("--upstream and --options determine the version: omit --version")
    known = {} if options is None else read_options(options)
    digest = version or unverified_version(engine, upstream, known)
    served_by = pool or pool_name(name, digest)
    with transaction(data) as connection:
        if version is None:
            added = register_unverified(
                connection,
                name=name,
                engine=engine,
                url=upstream,
                options=known,
                pool=served_by,
                endpoints=paths,
            )
        else:
            added = add_model(
                connection, name, version, pool=served_by, engine=engine, endpoints=paths
            )
        details: dict[str, Any] = {"pool": added.pool, "engine": engine}
        record_operator_event(connection, CLI_OPERATOR, Action.MODEL_REGISTERED, added.id, details)
    typer.echo(f"{added.name} {added.version}")


def sbom(
    model: Annotated[str, typer.Argument(help="NAME, for its newest version, or NAME@VERSION.")],
    data: DataOption = None,
) -> None:
    """Print the bill of materials of a version: CycloneDX JSON with files, digests and source."""
    with transaction(data) as connection:
        found = require_model(connection, model)
        manifest = read_manifest(connection, found)
    if manifest is None:
        raise NoManifestError(f"{found.id} has no manifest: it is {found.verification}.")
    text = bill_of_materials(found.name, found.version, manifest, created_at=found.created_at)
    typer.echo(text)


def endpoint_paths(text: str) -> tuple[str, ...]:
    """Parse comma-separated endpoints; adds /v1 to those that do not start with a slash."""
    names = (name.strip() for name in text.split(","))
    return tuple(n if n.startswith("/") else f"/v1/{n}" for n in names if n)
