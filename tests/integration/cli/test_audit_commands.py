"""Goal: an operator verifies the audit log and finds the first changed row."""

import json
import re
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from core.ids import TENANT, public_id
from tenancy.audit_log import ENTRY

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def recorded_operations(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """Set the database by variable, as an operator does, and record some operations."""
    monkeypatch.setenv("MILLRACE_DATABASE_URL", database_url)
    for name in ("acme", "other"):
        assert millrace("tenants", "create", name).exit_code == ExitCode.OK
        assert millrace("keys", "create", "--tenant", name).exit_code == ExitCode.OK


def millrace(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def tamper(database_url: str, *statements: str) -> None:
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for table in ("audit_log", "audit_heads"):
            connection.execute(sa.text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        for statement in statements:
            connection.execute(sa.text(statement))


def test_entries_are_listed_and_verified() -> None:
    rows = json.loads(millrace("audit", "list", "--tenant", "acme", "-o", "json").stdout)
    assert [row["action"] for row in rows] == ["key.created", "tenant.created"]
    assert {row["actor"] for row in rows} == {"cli"}
    assert "key.created" in millrace("audit", "list", "--tenant", "acme").stdout

    page = millrace("audit", "list", "--tenant", "acme", "--limit", "1")
    (after,) = re.findall(r"^more: --after (\S+)$", page.stderr, re.M)
    assert after == rows[0]["id"]
    arguments = ("audit", "list", "--tenant", "acme", "--after", after, "-o", "json")
    assert json.loads(millrace(*arguments).stdout) == rows[1:]
    for unknown in ("audit_0", "nothing", public_id(ENTRY, UUID(int=1))):
        other = millrace("audit", "list", "--tenant", "acme", "--after", unknown)
        assert other.exit_code == ExitCode.NOT_FOUND, other.output

    found = millrace("audit", "verify", "-o", "json")
    assert found.exit_code == ExitCode.OK
    chains = {one["tenant"]: one["rows_that_fit"] for one in json.loads(found.stdout)}
    assert chains.pop("installation") == 4
    assert [*chains.values()] == [2, 2]
    assert millrace("audit", "verify", "--tenant", "unknown").exit_code == ExitCode.NOT_FOUND


def test_verify_names_the_first_changed_row(database_url: str) -> None:
    tamper(database_url, "UPDATE audit_log SET actor = 'key_0' WHERE sequence = 2")

    found = millrace("audit", "verify", "--tenant", "acme")
    assert found.exit_code == ExitCode.FAILED
    assert "row 2: its content is not what was sealed" in found.stdout


def test_anchor_detects_a_recomputed_chain(database_url: str, tmp_path: Path) -> None:
    anchor = tmp_path / "heads.json"
    anchor.write_text(millrace("audit", "head", "-o", "json").stdout)
    assert len(millrace("audit", "head", "--tenant", "acme").stdout.splitlines()) == 2
    millrace("keys", "create", "--tenant", "acme")
    assert millrace("audit", "verify", "--anchor", str(anchor)).exit_code == ExitCode.OK

    tamper(database_url, "DELETE FROM audit_log", "DELETE FROM audit_heads")

    assert millrace("audit", "verify").exit_code == ExitCode.OK
    found = millrace("audit", "verify", "--anchor", str(anchor))
    assert found.exit_code == ExitCode.FAILED
    assert found.stdout.count("row 1: the row is missing") == 3  # two tenants, the installation


def test_all_anchors_are_checked_in_any_order(database_url: str, tmp_path: Path) -> None:
    honest, forged = tmp_path / "honest.json", tmp_path / "forged.json"
    honest.write_text(millrace("audit", "head", "--tenant", "acme", "-o", "json").stdout)
    tamper(database_url, "DELETE FROM audit_log", "DELETE FROM audit_heads")
    for _ in range(2):  # a chain of the same length
        assert millrace("keys", "create", "--tenant", "acme").exit_code == ExitCode.OK
    forged.write_text(millrace("audit", "head", "--tenant", "acme", "-o", "json").stdout)
    assert millrace("audit", "verify", "--anchor", str(forged)).exit_code == ExitCode.OK

    for order in ((honest, forged), (forged, honest)):
        options = [part for path in order for part in ("--anchor", str(path))]
        found = millrace("audit", "verify", *options)
        assert found.exit_code == ExitCode.FAILED
        assert "row 2: the anchor says otherwise" in found.stdout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '[{"tenant": "x", "sequence": 1, "hash": ""}]',
        '[{"tenant": 5, "sequence": 1, "hash": ""}]',
        f'[{{"tenant": "{public_id(TENANT, UUID(int=1))}", "sequence": 1, "hash": "x"}}]',
    ],
)
def test_invalid_anchor_file_is_refused(tmp_path: Path, text: str) -> None:
    anchor = tmp_path / "heads.json"
    anchor.write_text(text)
    assert millrace("audit", "verify", "--anchor", str(anchor)).exit_code == ExitCode.USAGE
    assert millrace("audit", "verify", "--anchor", "no-such").exit_code == ExitCode.FAILED


def test_operations_of_operators_are_listed_and_verified(database_url: str) -> None:
    created = millrace("operators", "create", "--role", "admin")
    rows = json.loads(millrace("audit", "list", "-o", "json").stdout)
    assert [row["action"] for row in rows] == [
        "operator_key.created",
        *["key.created", "tenant.created"] * 2,
    ]
    assert {row["actor"] for row in rows} == {"cli"}
    assert all({"address", "request_id"} <= row["details"].keys() for row in rows)
    assert rows[0]["subject"] == created.stderr.split()[0]
    assert rows[0]["details"]["role"] == "admin"
    assert created.stdout.strip() not in str(rows)
    tenants = {row["subject"] for row in rows if row["action"] == "tenant.created"}
    assert {row["details"]["tenant"] for row in rows[1:]} == tenants

    tamper(database_url, "UPDATE audit_log SET actor = 'key_0' WHERE action LIKE 'operator%'")
    found = millrace("audit", "verify")
    assert found.exit_code == ExitCode.FAILED
    assert re.search(r"installation +4 +row 5: its content is not what was sealed", found.stdout)
