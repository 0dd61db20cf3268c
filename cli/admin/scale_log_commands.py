"""`millrace scale status|explain|history|pause|set|resume`: what the autoscaler does, and orders.

They read and write the log alone, so they also work while the autoscaler does not run; an order is
then followed when it runs again.
"""

import getpass
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec.structs import asdict, replace

from autoscaler.policy.explanation import explanation
from autoscaler.policy.scaling_decision import ScalingDecision, decision_document
from cli.admin.operator_connections import DataOption, kafka_settings
from cli.admin.scaling_records import (
    ScalingRecords,
    decision_of,
    read_entry_at,
    read_history,
    read_scaling,
    write_override,
)
from cli.exits import CommandError, ExitCode
from cli.instants import instant_text, parse_instant
from cli.output import FormatOption, OutputFormat, write_json, write_output
from topics.records.records import Record
from topics.records.scaling import DecisionEntry, PoolScaling, ScalingOverride

SILENT_S: Final = 15.0
"""Age of a record from which nobody scales the pool."""

HISTORY_ENTRIES_MAX: Final = 10_000
_REASON_CHARS_MAX: Final = 200
_STATUS_HEADERS: Final = (
    "pool", "mode", "replicas", "warm pool", "target", "reason", "actuator", "age", "override",
)  # fmt: skip
_HISTORY_HEADERS: Final = (
    "time", "replicas", "warm pool", "need", "reason", "added", "removed", "applied", "withheld",
)  # fmt: skip

PoolArgument = Annotated[str, typer.Argument(help="The name of a pool, or role:NAME.")]
ReasonOption = Annotated[str, typer.Option(help="Why, for whoever reads the status.")]
UntilOption = Annotated[
    str | None,
    typer.Option(help="When the policy decides again: ISO 8601, or as +2h. Never, if left out."),
]


class OverrideRefusedError(CommandError):
    """The order is not within the bounds of the pool or role, or its time is over."""

    exit_code = ExitCode.USAGE


def status(data: DataOption = None, output_format: FormatOption = OutputFormat.TABLE) -> None:
    """Show for each pool and role what was decided last, and what an operator ordered.

    A record that is older than 15 s is silent: no autoscaler runs, and replicas stay as they are.
    """
    log, now_s = read_scaling(kafka_settings(data)), time.time()
    write_output(
        output_format,
        [_status_value(log, one, now_s) for one in _in_order(log)],
        _STATUS_HEADERS,
        lambda: [status_row(log, one, now_s) for one in _in_order(log)],
    )
    if not log.pools:
        typer.echo("no autoscaler has decided about any pool yet", err=True)


def explain(
    pool: PoolArgument,
    at: Annotated[
        str | None, typer.Option(help="At this time: ISO 8601, or as -2h. Now, if left out.")
    ] = None,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Say why a pool has so many replicas, or a role processes: terms, bounds, what was not done.

    Exit code 3: the log has no decision about the pool.
    """
    now_s = time.time()
    kafka = kafka_settings(data)
    notes = []
    if at is None:
        log = read_scaling(kafka)
        record = log.pool(pool)
        found = record.decision
        notes = list(_notes(log, record, now_s))
    else:
        entry = read_entry_at(kafka, pool, parse_instant(at, now_s))
        found = entry.decision
        notes = [f"The actuator failed: {entry.failure}."] if entry.failure else []
        if not entry.applied:
            notes.append("It was not applied: the mode was observe.")
    decision = decision_of(found, pool)
    if output_format is OutputFormat.JSON:
        write_json({"pool": pool, "notes": notes, "decision": decision_document(decision)})
        return
    for line in (*explanation(pool, decision), *notes):
        typer.echo(line)


def history(
    pool: PoolArgument,
    since: Annotated[str, typer.Option(help="From this time: ISO 8601, or as -2h.")] = "-1h",
    limit: Annotated[
        int, typer.Option(min=1, max=HISTORY_ENTRIES_MAX, help="The last ones, at most.")
    ] = 100,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the decisions about a pool or role, the oldest first; the log keeps 30 days."""
    since_s = parse_instant(since, time.time())
    entries = read_history(kafka_settings(data), pool, since_s, limit)
    decided = [(one, decision_of(one.decision, pool)) for one in entries]
    write_output(
        output_format,
        [_history_value(*one) for one in decided],
        _HISTORY_HEADERS,
        lambda: [history_row(*one) for one in decided],
    )


def pause(
    pool: PoolArgument,
    until: UntilOption = None,
    reason: ReasonOption = "",
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Keep the replicas of a pool or role as they are until the time, or until `resume`."""
    order = ScalingOverride(pool=pool, mode="paused", reason=reason)
    _order(order, until, data, output_format)


def set_replicas(
    pool: PoolArgument,
    replicas: Annotated[int, typer.Argument(min=0, help="Replicas, within the pool's bounds.")],
    until: UntilOption = None,
    reason: ReasonOption = "",
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Give a pool or role a number of replicas until the time, or until `resume`."""
    order = ScalingOverride(pool=pool, mode="set", replicas=replicas, reason=reason)
    _order(order, until, data, output_format)


def resume(
    pool: PoolArgument,
    reason: ReasonOption = "",
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Let the policy decide about a pool or role again."""
    order = ScalingOverride(pool=pool, mode="", reason=reason)
    _order(order, None, data, output_format)


def checked_override(
    log: ScalingRecords, override: ScalingOverride, now_s: float
) -> ScalingOverride:
    """Return an override that can be followed. Raises NoDecisionError, OverrideRefusedError."""
    record = log.pool(override.pool)
    if override.until_s and override.until_s <= now_s:
        raise OverrideRefusedError(f"{instant_text(override.until_s)} is over.")
    if len(override.reason) > _REASON_CHARS_MAX or not override.reason.isprintable():
        text = f"A reason has at most {_REASON_CHARS_MAX} printable characters."
        raise OverrideRefusedError(text)
    if override.mode == "set":
        if not record.decision:
            return override  # its inputs never gave a decision: the autoscaler bounds the order
        bounds = decision_of(record.decision, override.pool).bounds
        if not bounds.min_replicas <= override.replicas <= bounds.max_replicas:
            raise OverrideRefusedError(
                f"{override.replicas} is not within the bounds of {override.pool!r} now: "
                f"{bounds.min_replicas} to {bounds.max_replicas}."
            )
    return override


def status_row(log: ScalingRecords, record: PoolScaling, now_s: float) -> tuple[str, ...]:
    """Return the cells of a pool."""
    override, decision = log.override(record.pool, now_s), _decision(record)
    age_s = max(0.0, now_s - record.at_s)
    return (
        record.pool,
        record.mode,
        str(decision.live) if decision else "-",
        f"{decision.asleep}/{record.standby}" if decision else str(record.standby),
        str(record.target),
        decision.reason if decision else "-",
        record.actuator or "-",
        f"{age_s:.0f} s" + (", silent" if age_s > SILENT_S else ""),
        _override_text(override) if override else "-",
    )


def history_row(entry: DecisionEntry, decision: ScalingDecision) -> tuple[str, ...]:
    """Return the cells of a decision."""
    applied = "yes" if entry.applied else "no: observe"
    return (
        instant_text(entry.at_s),
        f"{decision.current} -> {decision.target}",
        f"{decision.asleep} -> {decision.standby}",
        f"{decision.need.exact:.2f}",
        decision.reason,
        str(len(decision.additions)),
        str(len(decision.removals)),
        f"no: {entry.failure}" if entry.failure else applied,
        ", ".join(dict.fromkeys(one.reason for one in decision.withheld)) or "-",
    )


def _order(
    order: ScalingOverride, until: str | None, data: Path | None, output_format: OutputFormat
) -> None:
    """Complete an order, check it by the log and write it."""
    now_s, kafka = time.time(), kafka_settings(data)
    until_s = 0.0 if until is None else parse_instant(until, now_s)
    order = replace(order, until_s=until_s, by=_user(), at_s=now_s)
    write_override(kafka, checked_override(read_scaling(kafka), order, now_s))
    if output_format is OutputFormat.JSON:
        write_json(_named(order))
    else:
        typer.echo(f"{order.pool}: {_override_text(order) if order.mode else 'by its policy'}")


def _notes(log: ScalingRecords, record: PoolScaling, now_s: float) -> list[str]:
    notes = []
    if record.mode != "active":
        notes.append(f"The mode is {record.mode}: nothing is applied.")
    if (override := log.override(record.pool, now_s)) is not None:
        notes.append(f"An operator ordered: {_override_text(override)}.")
    age_s = now_s - record.at_s
    if age_s > SILENT_S:
        notes.append(f"No autoscaler has written for {age_s:.0f} s: nobody scales the pool.")
    return notes


def _in_order(log: ScalingRecords) -> list[PoolScaling]:
    return [log.pools[name] for name in sorted(log.pools)]


def _decision(record: PoolScaling) -> ScalingDecision | None:
    return decision_of(record.decision, record.pool) if record.decision else None


def _status_value(log: ScalingRecords, record: PoolScaling, now_s: float) -> dict[str, Any]:
    decision, override = _decision(record), log.override(record.pool, now_s)
    value = _named(record)
    del value["memory"]
    value["decision"] = decision_document(decision) if decision else None
    value["override"] = _named(override) if override else None
    value["is_silent"] = now_s - record.at_s > SILENT_S
    return value


def _history_value(entry: DecisionEntry, decision: ScalingDecision) -> dict[str, Any]:
    value = _named(entry)
    value["decision"] = decision_document(decision)
    return value


def _named(record: Record) -> dict[str, Any]:
    """Return the fields of a record by name; on the log they are a list."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return _named(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, bytes) else value


def _override_text(override: ScalingOverride) -> str:
    order = f"set to {override.replicas}" if override.mode == "set" else override.mode
    until = f" until {instant_text(override.until_s)}" if override.until_s else ""
    reason = f": {override.reason}" if override.reason else ""
    return f"{order} by {override.by or 'unknown'}{until}{reason}"


def _user() -> str:
    """Return the name of the OS user; empty where it has none, as in some containers."""
    try:
        return getpass.getuser()[:_REASON_CHARS_MAX]
    except (OSError, KeyError, ImportError):
        return ""
