"""`millrace topics`: the catalogue of topics, and its comparison with a broker."""

import os
import shlex
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated, TypeAlias

import typer

from cli.admin.operator_connections import (
    DataOption,
    kafka_settings,
    known_pools,
    names_database,
    transaction,
)
from cli.exits import ExitCode
from cli.output import FormatOption, OutputFormat, write_output
from tenancy.audit_log import Action
from tenancy.installation_log import CLI_OPERATOR, record_operator_event
from topics.clients.acls import create_acls
from topics.clients.admin import TopicAdmin
from topics.records.access import Access, role_access
from topics.records.catalogue import SHARED_TOPICS, Topic, pool_topics
from topics.settings import KafkaSettings

BROKER_S_MAX = 15.0
_ANY_POOL = "<pool>"
_HEADERS = ("topic", "key", "partitions", "retention", "written by", "read by", "ordering")

app = typer.Typer(
    short_help="List, create and check the topics of the log.",
    help="List, create and check the topics of the log. For operators: connects to Kafka. "
    "The pools are those of the registered models (when MILLRACE_DATABASE_URL or --data names the "
    "database) and each --pool.",
)

PoolOption: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="A further pool; may be repeated.")
]


@app.command("list")
def list_topics(output_format: FormatOption = OutputFormat.TABLE) -> None:
    """List the topics of the catalogue with their properties. Needs no broker."""
    topics = (*SHARED_TOPICS, *pool_topics(_ANY_POOL))
    values = [topic.facts() for topic in topics]
    write_output(output_format, values, _HEADERS, lambda: [_cells(topic) for topic in topics])


@app.command()
def create(pool: PoolOption = None, data: DataOption = None) -> None:
    """Create missing topics and print their names.

    Of existing topics it only sets the retention of prompts and answers. The audit log has the
    names of created topics where the settings name the database.
    """
    admin = _admin(data)
    topics = _topics(pool, data)
    created = admin.create(topics)
    for name in created:
        typer.echo(name)
    admin.apply_body_retention(topics)
    if created and names_database(data):
        with transaction(data) as connection:
            record_operator_event(
                connection, CLI_OPERATOR, Action.TOPICS_CREATED, "topics", {"topics": created}
            )


@app.command()
def check(pool: PoolOption = None, data: DataOption = None) -> None:
    """Compare the broker with the catalogue: one line for each difference, and exit code 1."""
    drift = _admin(data).drift(_topics(pool, data))
    for difference in drift:
        typer.echo(difference)
    if drift:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def acls(
    pool: PoolOption = None,
    data: DataOption = None,
    principal: Annotated[
        str, typer.Option(help="The principal of a role; {role} is replaced by its name.")
    ] = "User:millrace-{role}",
    apply: Annotated[
        bool, typer.Option("--apply", help="Create the rights on the broker.")
    ] = False,
) -> None:
    """Print the commands that give each role the rights that it needs on the log, and no more.

    Needs no broker without --apply. The output is a shell script; its arguments name the broker:
    `sh acls.sh --bootstrap-server HOST:PORT --command-config admin.properties`.
    The finaliser has no rights.
    """
    rights = role_access(_pools(pool, data))
    if apply:
        count = create_acls(kafka_settings(data), rights, principal=principal)
        typer.echo(f"{count} rights", err=True)
        return
    if data is not None or f"{KafkaSettings.env_prefix}BOOTSTRAP_SERVERS" in os.environ:
        prefix = kafka_settings(data).topic_prefix
    else:
        prefix = os.environ.get(f"{KafkaSettings.env_prefix}TOPIC_PREFIX", "")
    for line in acl_commands(rights, prefix=prefix, principal=principal):
        typer.echo(line)


def acl_commands(rights: Iterable[Access], *, prefix: str, principal: str) -> Iterator[str]:
    """Yield one command of `kafka-acls.sh` for each role and resource."""
    by_resource = groupby(rights, key=lambda one: (one.role, one.kind, one.name))
    for (role, kind, name), its in by_resource:
        operations = [part for one in its for part in ("--operation", one.operation)]
        who = principal.replace("{role}", role)
        resource = [] if kind == "cluster" else [prefix + name]
        arguments = ["--add", "--allow-principal", who, *operations, f"--{kind}", *resource]
        yield f'kafka-acls.sh "$@" {shlex.join(arguments)}'


def retention_text(topic: Topic) -> str:
    """Return the retention of the topic as the catalogue writes it."""
    if not topic.expires:
        return "compacted"
    compacted = ", compacted" if topic.compacted else ""
    period = f"{topic.retention_hours} h" if topic.retention_hours else f"{topic.retention_days} d"
    return f"{period}{compacted}{', or as set' if topic.holds_bodies else ''}"


def _admin(data: DataOption) -> TopicAdmin:
    admin = TopicAdmin(kafka_settings(data))
    admin.wait_for_broker(BROKER_S_MAX)
    return admin


def _topics(pool: PoolOption, data: DataOption) -> list[Topic]:
    pools = _pools(pool, data)
    return [*SHARED_TOPICS, *(topic for name in pools for topic in pool_topics(name))]


def _pools(pool: PoolOption, data: DataOption) -> list[str]:
    """Return the known pools and the given ones, by name."""
    return sorted({*known_pools(data), *(pool or [])})


def _cells(topic: Topic) -> tuple[str, ...]:
    return (
        topic.name,
        topic.key,
        str(topic.partition_count),
        retention_text(topic),
        ", ".join(topic.written_by),
        ", ".join(topic.read_by) or "subscribers",
        topic.ordering,
    )
