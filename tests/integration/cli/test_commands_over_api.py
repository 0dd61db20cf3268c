"""Goal: operator commands need no database: over the API they print what they print with one."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from api.settings import ApiSettings
from cli.exits import ExitCode
from cli.main import app
from tenancy.tenants import create_tenant, find_tenant
from tests.conftest import cloned_database
from tests.integration.api.every_route.worlds import add_quarantine
from tests.integration.api.sites import running

pytestmark = pytest.mark.timeout(300)

DATABASE, URL, KEY = "MILLRACE_DATABASE_URL", "MILLRACE_URL", "MILLRACE_OPERATOR_KEY"
Command = Callable[..., Result]


def invoke(env: dict[str, str | None], *arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=env)


@pytest.fixture
def by_database(database_url: str) -> Command:
    """Run a command with the database alone."""
    env: dict[str, str | None] = {DATABASE: database_url, URL: None, KEY: None}
    return lambda *arguments: invoke(env, *arguments)


@pytest.fixture
def by_api(database_url: str, by_database: Command, tmp_path: Path) -> Iterator[Command]:
    """Run a command with the API and an operator key alone."""
    secret = by_database("operators", "create", "--role", "admin").stdout.strip()
    with running(ApiSettings(shutdown_grace_s=2), database_url, tmp_path / "objects") as site:
        env: dict[str, str | None] = {DATABASE: None, URL: site.url, KEY: secret}
        yield lambda *arguments: invoke(env, *arguments)


COMMANDS = (
    ("tenants", "create", "acme", "--stored-bytes-max", "5000"),
    ("tenants", "create", "Zürich AG", "--zero-retention"),
    ("tenants", "create", "acme"),
    ("tenants", "create", " "),
    ("tenants", "cache", "acme", "60"),
    ("tenants", "cache", "Zürich AG", "60"),
    ("tenants", "cache", "nobody", "60"),
    ("tenants", "update", "acme", "--call-timeout", "30"),
    ("tenants", "update", "acme", "--zero-retention", "--call-timeout", "off"),
    ("tenants", "update", "acme", "--weight", "4"),
    ("tenants", "update", "acme", "--reserved-shares", "large=0.25", "--priority-class", "low"),
    ("tenants", "update", "acme", "--reserved-shares", "large=0.95"),
    ("tenants", "update", "acme", "--bulk-hours", "22:00-06:00 Europe/Berlin"),
    ("tenants", "update", "acme", "--bulk-hours", "at night"),
    ("tenants", "update", "acme", "--infeasible-jobs", "mark"),
    ("tenants", "update", "nobody", "--zero-retention"),
    ("tenants", "list"),
    ("tenants", "list", "-o", "json"),
    ("keys", "create", "--tenant", "acme", "--name", "ci"),
    ("keys", "create", "--tenant", "nobody"),
    ("keys", "list"),
    ("keys", "list", "--tenant", "acme", "-o", "json"),
    ("keys", "list", "--tenant", "nobody"),
    ("keys", "revoke", "key_00000000000000000000000000000000"),
    ("keys", "revoke", "nothing"),
    ("quarantines", "list"),
    ("quarantines", "list", "-o", "json"),
    ("quarantines", "end", "quar_00000000000000000000000000000000"),
    ("quarantines", "end", "nothing"),
    ("tenants", "delete", "acme"),
    ("tenants", "delete", "acme", "--yes"),
    ("tenants", "delete", "acme", "--yes"),
    ("tenants", "list", "-o", "json"),
    ("keys", "list", "-o", "json"),
)
RANDOM = re.compile(r"\b(ten|key)_(?!0{32})[0-9a-f]{32}|sk-\S+|….{4}|\"hint\": \"[^\"]+\"")
CHANGES = re.compile(r"20\d\d-\d\d-\d\dT[\d:+]+|\"created_at\": \d+")
FACTS = re.compile(r" \((request req_\w+|name [^)]+)\)")  # the API names its request


def shown(done: Result) -> tuple[int, str, str]:
    """Return code and output of a command, without what differs each time."""
    out, err = (
        re.sub(r" +", " ", FACTS.sub("", CHANGES.sub("", RANDOM.sub("X", text))))
        for text in (done.stdout, done.stderr)
    )
    return done.exit_code, out, err


@pytest.fixture
def other_database(postgres_url: str, migrated_template: str) -> Iterator[str]:
    with cloned_database(postgres_url, migrated_template) as url:
        yield url


def test_commands_say_the_same_with_and_without_a_database(
    by_api: Command, other_database: str
) -> None:
    at_database: dict[str, str | None] = {DATABASE: other_database, URL: None, KEY: None}
    for command in COMMANDS:
        assert shown(by_api(*command)) == shown(invoke(at_database, *command)), command


def test_a_key_made_over_the_api_works_until_revoked(by_api: Command, by_database: Command) -> None:
    by_api("tenants", "create", "acme")
    made = by_api("keys", "create", "--tenant", "acme")
    key_id, secret = made.stderr.split()[0], made.stdout.strip()
    assert secret.startswith("sk-")
    listed = json.loads(by_database("keys", "list", "-o", "json").stdout)
    assert [key["id"] for key in listed] == [key_id]
    assert by_api("keys", "revoke", key_id).exit_code == ExitCode.OK
    assert by_api("keys", "revoke", key_id).exit_code == ExitCode.NOT_FOUND
    assert json.loads(by_database("keys", "list", "-o", "json").stdout) == []


def test_more_than_a_page_of_tenants_is_listed_by_name(
    by_api: Command, by_database: Command, database_url: str
) -> None:
    names = sorted(f"tenant {number:03}" for number in range(103))
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    for name in reversed(names):
        with engine.begin() as connection:
            create_tenant(connection, name)
    listed = json.loads(by_api("tenants", "list", "-o", "json").stdout)
    assert [tenant["name"] for tenant in listed] == names
    assert listed == json.loads(by_database("tenants", "list", "-o", "json").stdout)


def test_models_are_listed_over_the_api(by_api: Command, by_database: Command) -> None:
    add = ("models", "add", "m", "--version", "1", "--engine", "simulated", "--pool", "m-1")
    assert by_database(*add, "--endpoints", "embeddings").exit_code == ExitCode.OK
    for options in ((), ("-o", "json")):
        listed = by_api("models", "list", *options)
        assert (listed.exit_code, listed.stdout) == (
            ExitCode.OK,
            by_database("models", "list", *options).stdout,
        )


def test_a_quarantine_is_listed_and_ended_over_the_api(
    by_api: Command, by_database: Command, database_url: str
) -> None:
    by_database("tenants", "create", "acme")
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        tenant_id = find_tenant(connection, "acme")
    quarantine_id = add_quarantine(engine, tenant_id)
    for options in ((), ("-o", "json")):
        listed = by_api("quarantines", "list", *options)
        assert quarantine_id in listed.stdout
        assert listed.stdout == by_database("quarantines", "list", *options).stdout
    assert by_api("quarantines", "end", quarantine_id).exit_code == ExitCode.OK
    assert by_api("quarantines", "end", quarantine_id).exit_code == ExitCode.NOT_FOUND
    assert quarantine_id not in by_database("quarantines", "list").stdout


def test_without_database_and_operator_key_one_line_says_what_to_set() -> None:
    done = invoke({DATABASE: None, KEY: None}, "tenants", "list")
    assert done.exit_code == ExitCode.USAGE
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "MILLRACE_DATABASE_URL" in done.stderr
    assert KEY in done.stderr


@pytest.mark.parametrize("secret", ["sk-op-none", "sk-none"])
def test_a_refused_operator_key_is_one_line(database_url: str, tmp_path: Path, secret: str) -> None:
    with running(ApiSettings(shutdown_grace_s=2), database_url, tmp_path) as site:
        done = invoke({DATABASE: None, URL: site.url, KEY: secret}, "tenants", "list")
    assert done.exit_code == ExitCode.AUTH
    assert len(done.stderr.splitlines()) == 1
    assert secret not in done.stderr


def test_operator_keys_are_created_listed_and_revoked(by_database: Command) -> None:
    made = by_database("operators", "create", "--role", "read", "--name", "dashboard")
    key_id = made.stderr.split()[0]
    assert made.stdout.startswith("sk-op-")
    (listed,) = json.loads(by_database("operators", "list", "-o", "json").stdout)
    assert (listed["id"], listed["name"], listed["role"]) == (key_id, "dashboard", "read")
    assert made.stdout.strip() not in str(listed)
    assert "dashboard" in by_database("operators", "list").stdout
    assert by_database("operators", "revoke", key_id).exit_code == ExitCode.OK
    assert by_database("operators", "revoke", key_id).exit_code == ExitCode.NOT_FOUND
    assert by_database("operators", "create", "--role", "root").exit_code == ExitCode.USAGE
    assert json.loads(by_database("operators", "list", "-o", "json").stdout) == []
    (revoked,) = json.loads(by_database("operators", "list", "--revoked", "-o", "json").stdout)
    assert revoked["revoked_at"] is not None
