"""Goal: operator commands work on a real database and broker, with reliable exit codes."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from core.tenant_claims import RESERVED_TOTAL_MAX
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tenancy.api_keys import authenticate
from topics.records.catalogue import SHARED_TOPICS, pool_topics

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def services(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """Set the database by variable, as an operator does."""
    monkeypatch.setenv("MILLRACE_DATABASE_URL", database_url)


def millrace(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def is_accepted(database_url: str, secret: str) -> bool:
    engine = create_engine(
        DatabaseSettings.model_validate({"url": database_url}), application_name="test"
    )
    try:
        with engine.connect() as connection:
            return authenticate(connection, secret) is not None
    finally:
        engine.dispose()


def listed_tenant(field: str) -> object:
    (tenant,) = json.loads(millrace("tenants", "list", "-o", "json").stdout)
    return tenant[field]


def test_key_authenticates_until_revoked(database_url: str) -> None:
    assert millrace("tenants", "create", "acme").stdout.startswith("ten_")
    created = millrace("keys", "create", "--tenant", "acme", "--name", "ci")
    key_id, secret = created.stderr.split()[0], created.stdout.strip()
    assert is_accepted(database_url, secret)

    assert millrace("keys", "revoke", key_id).exit_code == ExitCode.OK

    assert not is_accepted(database_url, secret)
    assert millrace("keys", "revoke", key_id).exit_code == ExitCode.NOT_FOUND


def test_tenant_is_listed_and_its_name_is_unique() -> None:
    millrace("tenants", "create", "acme")

    assert millrace("tenants", "create", "acme").exit_code == ExitCode.CONFLICT
    assert [t["name"] for t in json.loads(millrace("tenants", "list", "-o", "json").stdout)] == [
        "acme"
    ]
    assert "acme" in millrace("tenants", "list").stdout


def test_response_cache_is_turned_on_and_off() -> None:
    listed = partial(listed_tenant, "response_cache_ttl_s")
    millrace("tenants", "create", "acme")
    assert listed() is None
    assert millrace("tenants", "cache", "acme", "60").stdout == "acme 60 s\n"
    assert listed() == 60
    assert millrace("tenants", "cache", "acme", "off").stdout == "acme off\n"
    assert listed() is None
    for wrong in ("0", "-1", "86401", "1e3", "soon", ""):
        assert millrace("tenants", "cache", "acme", wrong).exit_code == ExitCode.USAGE
    assert millrace("tenants", "cache", "unknown", "60").exit_code == ExitCode.NOT_FOUND


def test_call_timeout_of_a_tenant_is_set() -> None:
    listed = partial(listed_tenant, "call_timeout_ms")
    millrace("tenants", "create", "acme")
    assert listed() is None
    written = millrace("tenants", "update", "acme", "--call-timeout", "30").stdout
    assert written == "acme call timeout 30 s\n"
    assert listed() == 30_000
    assert millrace("tenants", "update", "acme", "--call-timeout", "off").exit_code == ExitCode.OK
    assert listed() is None
    for wrong in ("0", "86401", "soon"):
        done = millrace("tenants", "update", "acme", "--call-timeout", wrong)
        assert done.exit_code == ExitCode.USAGE
    assert millrace("tenants", "update", "acme").exit_code == ExitCode.USAGE


def test_weight_of_a_tenant_is_set() -> None:
    listed = partial(listed_tenant, "weight")
    millrace("tenants", "create", "acme")
    assert listed() == 1
    assert millrace("tenants", "update", "acme", "--weight", "3").stdout == "acme weight 3\n"
    assert listed() == 3
    for wrong in ("0", "1001", "1.5", "-1"):
        done = millrace("tenants", "update", "acme", "--weight", wrong)
        assert done.exit_code == ExitCode.USAGE


def test_reserved_shares_and_the_class_of_a_tenant_are_set() -> None:
    listed = partial(listed_tenant, "reserved_shares")
    millrace("tenants", "create", "acme")
    assert listed() == {}
    done = millrace("tenants", "update", "acme", "--reserved-shares", "large=0.5,*=0.1")
    assert done.stdout == "acme reserved shares *=0.1,large=0.5\n"
    assert listed() == {"large": 0.5, "*": 0.1}
    for wrong in ("large", "large=2", "large=0.1,large=0.2", "large=-0.1", "=0.1x", "Large=0.1"):
        assert millrace("tenants", "update", "acme", "--reserved-shares", wrong).exit_code
    assert listed() == {"large": 0.5, "*": 0.1}
    assert not millrace("tenants", "update", "acme", "--reserved-shares", "off").exit_code
    assert listed() == {}
    assert not millrace("tenants", "update", "acme", "--priority-class", "high").exit_code
    assert listed_tenant("priority_class") == "high"


def test_reserved_shares_of_a_pool_add_up_to_their_limit() -> None:
    def reserve(tenant: str, shares: str) -> Result:
        return millrace("tenants", "update", tenant, "--reserved-shares", shares)

    for name in ("acme", "other"):
        millrace("tenants", "create", name)
    left = RESERVED_TOTAL_MAX - 0.5
    assert not reserve("acme", "large=0.5,*=0.1").exit_code
    refused = reserve("other", f"large={left + 0.01:.2f}")
    assert refused.exit_code == ExitCode.USAGE
    assert "acme 0.5" in refused.stderr
    assert "pool large" in refused.stderr
    assert reserve("other", f"*={left + 0.01:.2f}").exit_code  # acme has half of large
    others = RESERVED_TOTAL_MAX - 0.1
    assert not reserve("other", f"large={left:.2f},*={others:.2f}").exit_code
    assert not reserve("acme", "off").exit_code
    assert not reserve("other", f"*={RESERVED_TOTAL_MAX}").exit_code


def test_bulk_hours_of_a_tenant_are_set() -> None:
    listed = partial(listed_tenant, "bulk_hours")
    millrace("tenants", "create", "acme")
    assert listed() is None
    hours = "Mon-Fri 22:00-06:00, Sat-Sun 00:00-24:00 Europe/Berlin"
    done = millrace("tenants", "update", "acme", "--bulk-hours", hours)
    assert done.stdout == f"acme bulk hours {hours}\n"
    assert listed() == hours
    failed = millrace("tenants", "update", "acme", "--bulk-hours", "22:00-06:00 Mars")
    assert failed.exit_code == ExitCode.USAGE
    assert "bulk_hours: 'Mars' is no time zone" in failed.stderr
    assert listed() == hours
    millrace("tenants", "update", "acme", "--bulk-hours", "off")
    assert listed() is None


def test_infeasible_jobs_of_a_tenant_are_set() -> None:
    listed = partial(listed_tenant, "infeasible_jobs")
    millrace("tenants", "create", "acme")
    assert listed() == "accept"
    done = millrace("tenants", "update", "acme", "--infeasible-jobs", "fail")
    assert done.stdout == "acme infeasible jobs fail\n"
    assert listed() == "fail"
    wrong = millrace("tenants", "update", "acme", "--infeasible-jobs", "drop")
    assert wrong.exit_code == ExitCode.USAGE


def test_degradation_of_a_tenant_is_set_and_turned_off() -> None:
    tokens = partial(listed_tenant, "degraded_output_tokens_max")
    model = partial(listed_tenant, "degraded_model")
    millrace("tenants", "create", "acme")
    assert (tokens(), model()) == (None, None)
    options = ("--degraded-output-tokens", "256", "--degraded-model", "org/small")
    done = millrace("tenants", "update", "acme", *options)
    assert done.stdout == "acme output under load 256\nacme model under load org/small\n"
    assert (tokens(), model()) == (256, "org/small")
    for wrong in ("0", "some", "10000001"):
        refused = millrace("tenants", "update", "acme", "--degraded-output-tokens", wrong)
        assert refused.exit_code == ExitCode.USAGE
    assert millrace("tenants", "update", "acme", "--degraded-model", "two words").exit_code
    options = ("--degraded-output-tokens", "off", "--degraded-model", "off")
    millrace("tenants", "update", "acme", *options)
    assert (tokens(), model()) == (None, None)


def test_key_of_an_unknown_tenant_is_refused() -> None:
    failed = millrace("keys", "create", "--tenant", "unknown")

    assert failed.exit_code == ExitCode.NOT_FOUND
    assert failed.stdout == ""
    assert "unknown" in failed.stderr


def test_model_version_is_immutable() -> None:
    added = ["models", "add", "m", "--version", "1", "--engine", "simulated", "--endpoints"]

    assert millrace(*added, "embeddings", "--pool", "m-1").stdout == "m 1\n"
    assert millrace(*added, "/v1/embeddings", "--pool", "m-1").exit_code == ExitCode.OK
    assert millrace(*added, "embeddings", "--pool", "m-2").exit_code == ExitCode.CONFLICT
    assert millrace(*added, "embeddings", "--pool", "NO").exit_code == ExitCode.USAGE
    (listed,) = json.loads(millrace("models", "list", "-o", "json").stdout)
    assert (listed["name"], listed["pool"]) == ("m", "m-1")
    assert listed["endpoints"] == ["/v1/embeddings"]


def test_topics_of_registered_models_are_created_and_checked(
    monkeypatch: pytest.MonkeyPatch, kafka_bootstrap: str, topic_prefix: str
) -> None:
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    monkeypatch.setenv("MILLRACE_KAFKA_TOPIC_PREFIX", topic_prefix)
    options = ("--version", "1", "--engine", "simulated", "--endpoints", "embeddings")
    millrace("models", "add", "m", "--pool", "m-1", *options)
    topics = [*SHARED_TOPICS, *pool_topics("m-1"), *pool_topics("extra")]

    missing = millrace("topics", "check", "--pool", "extra")
    created = millrace("topics", "create", "--pool", "extra")
    checked = millrace("topics", "check", "--pool", "extra")
    recorded = json.loads(millrace("audit", "list", "-o", "json").stdout)

    assert missing.exit_code == ExitCode.FAILED
    assert len(missing.stdout.splitlines()) == len(topics)
    assert created.exit_code == ExitCode.OK
    assert sorted(created.stdout.split()) == sorted(topic_prefix + t.name for t in topics)
    assert (checked.exit_code, checked.stdout) == (ExitCode.OK, "")
    assert [row["action"] for row in recorded] == ["topics.created", "model.registered"]
    assert sorted(recorded[0]["details"]["topics"]) == sorted(created.stdout.split())
    assert recorded[1]["subject"] == "m@1"


def test_topic_list_needs_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", raising=False)

    listed_topics = json.loads(millrace("topics", "list", "-o", "json").stdout)

    assert len(listed_topics) == len(SHARED_TOPICS) + len(pool_topics("any"))


def test_missing_settings_are_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_DATABASE_URL")

    failed = millrace("tenants", "list")

    assert failed.exit_code == ExitCode.USAGE
    assert "MILLRACE_DATABASE_URL" in failed.stderr


def test_unavailable_database_is_one_error_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DATABASE_URL", "postgresql://me:secret@127.0.0.1:9/none")

    failed = millrace("tenants", "list")

    assert failed.exit_code == ExitCode.FAILED
    assert failed.stderr.startswith("millrace: Postgres does not answer")
    assert len(failed.stderr.splitlines()) == 1
    assert "secret" not in failed.stderr
