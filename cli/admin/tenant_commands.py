"""`millrace tenants` and `millrace keys`: tenants, their response cache and their API keys."""

import re
from typing import Annotated, Any, Final

import typer

from cli.admin.administration import administration
from cli.admin.operator_connections import DataOption
from cli.admin.share_commands import show_shares
from cli.batch.job_display import time_text
from cli.exits import NotFoundError
from cli.output import FormatOption, OutputFormat, write_output
from core.tenant_claims import PriorityClass
from tenancy.response_cache import TTL_S_MAX
from tenancy.tenants import OUTPUT_TOKENS_MAX, WEIGHT_MAX, InfeasibleJobs

_HOW: Final = "For operators: connects to Postgres, or to the API with MILLRACE_OPERATOR_KEY."
keys = typer.Typer(help=f"Create, list and revoke API keys. {_HOW}")
app = typer.Typer(help=f"Create, list and set up tenants. {_HOW}")

_OutputTokensOption = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENS",
        help="Output of its online calls while the predicted wait is long, or `off`.",
    ),
]
_ModelOption = Annotated[
    str | None,
    typer.Option(help="Model of its online calls that an overloaded model would refuse, or `off`."),
]

_SHOWN_NAMES: Final = {
    "degraded_output_tokens_max": "output under load",
    "degraded_model": "model under load",
}
_KEY_HEADERS = ("id", "tenant", "name", "ends with", "created", "revoked")
_HEADERS = (
    "name",
    "id",
    "bytes at most",
    "cache",
    "zero retention",
    "calls at most",
    "weight",
    "reserved",
    "class",
    "bulk hours",
    "infeasible jobs",
    "output under load",
    "model under load",
    "created",
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A unique name.")],
    stored_bytes_max: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Bytes of files it may store; else the default."),
    ] = None,
    zero_retention: Annotated[
        bool, typer.Option("--zero-retention", help="Retain nothing but the ledger.")
    ] = False,
    data: DataOption = None,
) -> None:
    """Create a tenant and print its id. Next: `millrace keys create --tenant NAME`."""
    with administration(data) as installation:
        tenant_id = installation.create_tenant(
            name, stored_bytes_max=stored_bytes_max, zero_retention=zero_retention
        )
    typer.echo(tenant_id)


@app.command()
def update(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    zero_retention: Annotated[
        bool | None,
        typer.Option(
            "--zero-retention/--no-zero-retention",
            help="Whether to retain nothing but the ledger of what is created from now on.",
        ),
    ] = None,
    call_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", help="Longest time of its online calls, 1 to 86400, or `off`."
        ),
    ] = None,
    weight: Annotated[
        int | None,
        typer.Option(
            min=1, max=WEIGHT_MAX, help="Its share of a pool, in relation to other tenants' (1)."
        ),
    ] = None,
    reserved_shares: Annotated[
        str | None,
        typer.Option(
            help="Fractions of pools that it gets at least while it has work, such as"
            " `large=0.25,*=0.1`, or `off`; `*` is every other pool."
        ),
    ] = None,
    priority_class: Annotated[
        PriorityClass | None,
        typer.Option(help="Tenants of a higher class come first; lower ones keep 5 % of a pool."),
    ] = None,
    bulk_hours: Annotated[
        str | None,
        typer.Option(
            help="Hours in which items of its batches may run, such as"
            " `22:00-06:00 Europe/Berlin`, or `off`."
        ),
    ] = None,
    infeasible_jobs: Annotated[
        InfeasibleJobs | None,
        typer.Option(help="What happens to valid batches that cannot meet their deadline."),
    ] = None,
    degraded_output_tokens: _OutputTokensOption = None,
    degraded_model: _ModelOption = None,
    data: DataOption = None,
) -> None:
    """Change a tenant. API processes and intake apply it within seconds."""
    given: dict[str, Any] = {
        "zero_retention": zero_retention,
        "call_timeout_ms": call_timeout,
        "weight": weight,
        "reserved_shares": reserved_shares,
        "priority_class": priority_class,
        "bulk_hours": bulk_hours,
        "infeasible_jobs": infeasible_jobs,
        "degraded_output_tokens_max": degraded_output_tokens,
        "degraded_model": degraded_model,
    }
    changes = {field: _field_value(field, one) for field, one in given.items() if one is not None}
    if not changes:
        raise typer.BadParameter("give at least one option")
    with administration(data) as installation:
        installation.change_tenant(name, changes)
    for field, value in changes.items():
        typer.echo(f"{name} {_change_text(field, value)}")


def _field_value(field: str, given: Any) -> object:
    """Return the value of a tenant's field for the value of its option."""
    match field:
        case "call_timeout_ms":
            seconds = _seconds_or_off(given)
            return None if seconds is None else seconds * 1000
        case "reserved_shares":
            return _parsed_shares(given)
        case "degraded_output_tokens_max":
            return _tokens_or_off(given)
        case "bulk_hours" | "degraded_model":
            return None if given == "off" else given
        case "priority_class" | "infeasible_jobs":
            return given.value
        case _:
            return given


def _change_text(field: str, value: Any) -> str:
    """Return a change of a tenant as it is printed."""
    if field == "zero_retention":
        return f"zero retention {'on' if value else 'off'}"
    if field == "call_timeout_ms":
        return f"call timeout {_seconds_text(None if value is None else value // 1000)}"
    if field == "reserved_shares":
        return f"reserved shares {_shares_text(value) or 'off'}"
    name = _SHOWN_NAMES.get(field, field.replace("_", " "))
    return f"{name} {'off' if value is None else value}"


@app.command()
def cache(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    seconds: Annotated[
        str, typer.Argument(help="Time to live of cached responses, 1 to 86400, or `off`.")
    ],
    data: DataOption = None,
) -> None:
    """Answer identical requests of a tenant from a response cache, or turn the cache off.

    API processes apply it within seconds.
    """
    ttl_s = _seconds_or_off(seconds)
    with administration(data) as installation:
        installation.change_tenant(name, {"response_cache_ttl_s": ttl_s})
    typer.echo(f"{name} {_seconds_text(ttl_s)}")


@app.command()
def delete(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Required: it cannot be undone.")] = False,
    data: DataOption = None,
) -> None:
    """Delete a tenant with its keys at once, and with its jobs, files and webhooks soon.

    Prints its id. The usage ledger and the audit log remain.
    """
    if not yes:
        raise typer.BadParameter("add --yes: all data of the tenant is erased")
    with administration(data) as installation:
        typer.echo(installation.delete_tenant(name))


app.command("shares")(show_shares)


@app.command("list")
def list_tenants(data: DataOption = None, output_format: FormatOption = OutputFormat.TABLE) -> None:
    """List all tenants by name."""
    with administration(data) as installation:
        found = installation.tenants()
    write_output(output_format, found, _HEADERS, lambda: [_cells(tenant) for tenant in found])


def _cells(tenant: dict[str, Any]) -> tuple[str, ...]:
    bytes_max, timeout_ms = tenant["stored_bytes_max"], tenant["call_timeout_ms"]
    tokens_max = tenant["degraded_output_tokens_max"]
    return (
        tenant["name"],
        tenant["id"],
        "default" if bytes_max is None else f"{bytes_max:,}",
        _seconds_text(tenant["response_cache_ttl_s"]),
        "yes" if tenant["zero_retention"] else "no",
        "default" if timeout_ms is None else f"{timeout_ms / 1000:g} s",
        str(tenant["weight"]),
        _shares_text(tenant["reserved_shares"]),
        tenant["priority_class"],
        tenant["bulk_hours"] or "any",
        tenant["infeasible_jobs"],
        "as requested" if tokens_max is None else f"{tokens_max:,} tokens",
        tenant["degraded_model"] or "refused",
        time_text(tenant["created_at"]),
    )


def _shares_text(shares: dict[str, float]) -> str:
    return ",".join(f"{pool}={share:g}" for pool, share in sorted(shares.items()))


def _seconds_text(seconds: int | None) -> str:
    return "off" if seconds is None else f"{seconds} s"


def _seconds_or_off(text: str) -> int | None:
    if text == "off":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= TTL_S_MAX:
        raise typer.BadParameter(f"give 1 to {TTL_S_MAX} seconds, or `off`")
    return int(text)


def _parsed_shares(text: str) -> dict[str, float]:
    """Return the shares in `POOL=FRACTION,…`, or none for `off`."""
    if text == "off":
        return {}
    found: dict[str, float] = {}
    for part in text.split(","):
        pool, _, number = part.strip().partition("=")
        if not re.fullmatch(r"[01](\.\d{1,6})?", number) or pool in found:
            raise typer.BadParameter("give shares such as `large=0.25,*=0.1`, or `off`")
        found[pool] = float(number)
    return found


def _tokens_or_off(text: str) -> int | None:
    if text == "off":
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(OUTPUT_TOKENS_MAX))
    if not is_number or not 1 <= int(text) <= OUTPUT_TOKENS_MAX:
        raise typer.BadParameter(f"give 1 to {OUTPUT_TOKENS_MAX} tokens, or `off`")
    return int(text)


@keys.command("create")
def create_tenant_key(
    tenant: Annotated[str, typer.Option(help="Name of the tenant that the key authenticates.")],
    name: Annotated[str, typer.Option(help="Purpose of the key; shown in lists.")] = "",
    data: DataOption = None,
) -> None:
    """Create a key and print it on stdout. Only its hash is stored, so it is shown only once.

    Its id, which `revoke` needs, goes to stderr.
    """
    with administration(data) as installation:
        key_id, secret = installation.create_key(tenant, name)
    typer.echo(f"{key_id} of tenant {tenant}; shown this once:", err=True)
    typer.echo(secret)


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only the keys of this tenant.")] = None,
    revoked: Annotated[bool, typer.Option("--revoked", help="Include revoked keys.")] = False,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List keys, oldest first, with their tenants and last characters; never the keys."""
    with administration(data) as installation:
        found = installation.keys(tenant, with_revoked=revoked)
    write_output(output_format, found, _KEY_HEADERS, lambda: [_key_cells(key) for key in found])


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id, `key_…`.")],
    data: DataOption = None,
) -> None:
    """Revoke a key permanently. Jobs that it created continue."""
    with administration(data) as installation:
        revoked = installation.revoke_key(key_id)
    if not revoked:
        raise NotFoundError("No active key has this id.")
    typer.echo(f"{key_id} is revoked.", err=True)


def _key_cells(key: dict[str, Any]) -> tuple[str, ...]:
    return (
        key["id"],
        key["tenant"],
        key["name"],
        f"…{key['hint']}",
        time_text(key["created_at"]),
        time_text(key["revoked_at"]),
    )
