"""Goal: no child of `up` sees a secret that is not of its role."""

import os
from pathlib import Path

import pytest

from cli.stack.processes.child import Child, spawn
from cli.stack.processes.inherited_env import OF_ROLE, inherited_env
from cli.stack.processes.role_children import MODULES, role_child
from cli.stack.services.embedded_kafka import EmbeddedKafka
from cli.stack.services.embedded_postgres import EmbeddedPostgres
from registry.sources.settings import SourceSettings
from tests.support.until import until
from tests.unit.docs.settings_classes import settings_classes

SHARED = {
    "MILLRACE_KAFKA_SASL_PASSWORD": "canary-kafka",
    "MILLRACE_DATABASE_URL": "postgresql://u:canary-database@h/d",
    "MILLRACE_S3_SECRET_KEY": "canary-objects",
    "MILLRACE_WEBHOOKS_SECRET_KEY": "canary-webhooks",
    "MILLRACE_ENGINE_UPSTREAM_API_KEY": "canary-upstream",
    "HF_TOKEN": "canary-models",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
}
UNRELATED = {
    "OPENAI_API_KEY": "canary-openai",
    "GITHUB_TOKEN": "canary-github",
    "MILLRACE_KEY": "canary-client",
    "DATABASE_PASSWORD": "canary-other",
}
SEEN = {
    "api": {"kafka", "database", "objects", "aws", "webhooks"},
    "intake": {"kafka", "database", "objects", "aws"},
    "batcher": {"kafka", "database"},
    "gpu-consumer": {"kafka", "objects", "aws", "upstream", "models"},
    "results-writer": {"kafka", "database"},
    "finaliser": {"database", "objects", "aws"},
    "webhooks": {"kafka", "database", "webhooks"},
    "autoscaler": {"kafka"},
}


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SHARED, **UNRELATED}.items():
        monkeypatch.setenv(name, value)


def environment_of(child: Child, folder: Path) -> dict[str, str]:
    """Start `env` in place of the child's program and return what it prints."""
    probe = Child(name="probe", argv=("env", "-0"), env=child.env, inherits=child.inherits)
    process = spawn(probe, folder)
    until(process.has_ended, timeout_s=30)
    assert process.kill_and_reap() == 0
    text = (folder / "probe.log").read_text()
    return dict(line.split("=", 1) for line in text.split("\0") if line)


def canaries_in(env: dict[str, str]) -> set[str]:
    found = "\n".join(env.values())
    known = [*SHARED.values(), *UNRELATED.values()]
    names = {value.partition("canary-")[2].partition("@")[0] for value in known}
    return {name for name in names if f"canary-{name}" in found}


@pytest.mark.parametrize("role", MODULES)
def test_a_role_gets_its_own_variables_alone(role: str, tmp_path: Path) -> None:
    env = environment_of(role_child(role, role, dict(os.environ)), tmp_path)
    assert canaries_in(env) == SEEN[role]
    assert env["PATH"] == os.environ["PATH"]


def test_the_services_get_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xshare:auto")
    broker, server = EmbeddedKafka(tmp_path, tmp_path), EmbeddedPostgres(tmp_path)
    monkeypatch.setattr(EmbeddedKafka, "_java", lambda *_, **__: ("java",))
    monkeypatch.setattr("cli.stack.services.embedded_postgres.binaries", lambda: tmp_path)
    java = environment_of(broker.child(), tmp_path / "a")
    assert canaries_in(java) == set()
    assert java["JDK_JAVA_OPTIONS"] == "-Xshare:auto"
    assert canaries_in(environment_of(server.child(), tmp_path / "b")) == set()


def test_every_setting_reaches_a_role() -> None:
    of_roles = [cls for cls in settings_classes() if cls is not SourceSettings]  # of commands
    names = [cls.env_prefix + field.upper() for cls in of_roles for field in cls.model_fields]
    given = dict.fromkeys(names, "1")
    assert {name for role in MODULES for name in inherited_env(OF_ROLE[role], given)} == {*names}


def test_an_operator_may_pass_further_variables_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MILLRACE_UP_PASS_ENV": "GITHUB_TOKEN, EXTRA_*", "EXTRA_A": "1", **UNRELATED}
    assert inherited_env(("PATH",), given) == {"GITHUB_TOKEN": "canary-github", "EXTRA_A": "1"}
