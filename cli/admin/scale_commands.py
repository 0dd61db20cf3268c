"""`millrace scale`: scaling policies of pools, and what the autoscaler decided by them."""

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from autoscaler.policies.policies import Policies, entry_bounds
from autoscaler.policies.policy_file import PolicyFile
from autoscaler.policies.policy_reader import InvalidPoliciesError
from autoscaler.policies.pool_policy import PoolPolicy, ScheduleEntry
from cli.admin.scale_log_commands import (
    explain,
    history,
    pause,
    resume,
    set_replicas,
    status,
)
from cli.exits import ExitCode
from cli.output import FormatOption, OutputFormat, write_output, write_table

OTHER_POOLS: Final = "(other pools)"
"""Stands for each pool that the file does not name."""

_HEADERS: Final = (
    "pool",
    "mode",
    "replicas",
    "warm",
    "first token",
    "queue",
    "utilization",
    "idle",
    "schedule",
    "GPU types",
    "spot",
    "budget/h",
    "zones",
)

_ROLE_HEADERS: Final = ("role", "mode", "replicas", "target/s", "drain", "actuator")

app = typer.Typer(
    short_help="Check scaling policies, explain and override decisions.",
    help="Check scaling policies, explain and override decisions. For operators: all but check "
    "connect to Kafka.",
)
app.command()(status)
app.command()(explain)
app.command()(history)
app.command()(pause)
app.command("set")(set_replicas)
app.command()(resume)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A scaling policy file, TOML.")],
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check a scaling policy file and show what each of its pools and roles gets.

    Connects to nothing. Exit code 2: the file is not valid; each line on stderr says where and why.
    """
    try:
        policies = PolicyFile(file).policies
    except InvalidPoliciesError as error:
        for problem in error.problems:
            typer.echo(problem, err=True)
        raise typer.Exit(ExitCode.USAGE) from None
    write_output(output_format, policies_json(policies), _HEADERS, lambda: policy_rows(policies))
    if policies.roles and output_format is OutputFormat.TABLE:
        write_table(_ROLE_HEADERS, role_rows(policies))


def policies_json(policies: Policies) -> dict[str, Any]:
    """Return the policies with all defaults, for programs."""
    found: dict[str, Any] = msgspec.to_builtins(policies)
    return found


def policy_rows(policies: Policies) -> list[tuple[str, ...]]:
    """Return one row for each pool of the file, by name, and one for all other pools."""
    rows = [_row(name, policy) for name, policy in sorted(policies.pools.items())]
    return [*rows, _row(OTHER_POOLS, policies.defaults)]


def role_rows(policies: Policies) -> list[tuple[str, ...]]:
    """Return one row for each role that the file scales, by name."""
    return [
        (
            name,
            role.mode,
            f"{role.replicas_min}-{role.replicas_max}",
            f"{role.target_per_s:g}",
            f"{role.drain_s:g} s",
            role.actuator or "-",
        )
        for name, role in sorted(policies.roles.items())
    ]


def _row(name: str, policy: PoolPolicy) -> tuple[str, ...]:
    gpus = "" if policy.gpus_per_replica == 1 else f" ×{policy.gpus_per_replica}"
    fallback = "" if policy.on_demand_fallback or not policy.spot_share else ", no fallback"
    return (
        name,
        policy.mode,
        f"{policy.replicas_min}-{policy.replicas_max}",
        str(policy.warm_replicas),
        f"{policy.first_token_s:g} s",
        f"{policy.queue_s:g} s",
        f"{policy.utilization:g}",
        f"{policy.idle_s:g} s",
        "; ".join(_entry_text(policy, entry) for entry in policy.schedule) or "-",
        (", ".join(policy.gpu_types) + gpus) if policy.gpu_types else "-",
        f"{policy.spot_share:.0%}{fallback}",
        "-" if policy.budget_per_hour is None else f"{policy.budget_per_hour:g}",
        ", ".join(policy.zones) or "-",
    )


def _entry_text(policy: PoolPolicy, entry: ScheduleEntry) -> str:
    bounds = entry_bounds(policy, entry)
    return f"{bounds.replicas_min}-{bounds.replicas_max} {entry.hours}"
