"""Goal: `up --autoscale` begins each pool as its policy says, and tells the autoscaler where."""

import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autoscaler.actuators.actuator import KindCount
from autoscaler.policies.policy_reader import read_policies
from cli.exits import ExitCode
from cli.main import app
from cli.stack.embedded_stack import EmbeddedStack, StackOptions
from cli.stack.processes.inherited_env import role_env
from cli.stack.processes.role_children import refuse_reserved_variables
from cli.stack.scaled_pools import (
    autoscaler_env,
    read_stack_policies,
    scaled_pools,
    unserved_tables,
)
from cli.stack.served_models import served_model
from core.errors import SettingsError

AT_S = datetime(2026, 6, 3, 12, tzinfo=UTC).timestamp()  # a Wednesday
POLICIES = """
[gpu_types.h100]
memory_gib = 80
cost_per_hour = 4
throughput = [[1, 100]]

[pools.empty-simulated]
replicas_max = 7

[pools.placed-simulated]
mode = "observe"
replicas_min = 3
gpu_types = ["h100"]
zones = ["z1", "z2"]

[[pools.scheduled-simulated.schedule]]
hours = "Mon-Fri 08:00-18:00 UTC"
replicas_min = 2
"""


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    file = tmp_path / "scaling.toml"
    file.write_text(POLICIES)
    return file


def pools_at(at_s: float, text: str = POLICIES) -> dict[str, tuple[KindCount, ...]]:
    names = ["empty-simulated", "placed-simulated", "scheduled-simulated"]
    found = scaled_pools(read_policies(text.encode(), "file"), names, at_s)
    assert all(pool.order.epoch == 0 for pool in found)
    return {pool.pool: pool.order.kinds for pool in found}


def test_a_pool_begins_with_its_minimum_in_its_first_type_and_zones() -> None:
    assert pools_at(AT_S) == {
        "empty-simulated": (),
        "placed-simulated": (
            KindCount(gpu_type="h100", zone="z1", replicas=2),
            KindCount(gpu_type="h100", zone="z2", replicas=1),
        ),
        "scheduled-simulated": (KindCount(replicas=2),),
    }


def test_a_pool_begins_by_its_schedule() -> None:
    assert pools_at(AT_S + 10 * 3600)["scheduled-simulated"] == ()


def test_more_replicas_than_a_stack_has_are_refused() -> None:
    with pytest.raises(SettingsError, match="at least 120 replicas together"):
        pools_at(AT_S, "[defaults]\nreplicas_min = 40\nreplicas_max = 50\n")


def test_the_bounds_of_each_pool_are_told() -> None:
    policies = read_policies(POLICIES.encode(), "file")
    first, second = scaled_pools(policies, ["empty-simulated", "placed-simulated"], AT_S)

    assert first.bounds_text() == "pool empty-simulated: 0 to 7 replicas, mode active"
    assert second.bounds_text() == "pool placed-simulated: 3 to 10 replicas, mode observe"


def test_the_role_reads_its_own_variables(tmp_path: Path) -> None:
    env = autoscaler_env(tmp_path / "data", Path("scaling.toml"))

    assert (
        role_env("autoscaler", env)
        == env
        == {
            "MILLRACE_AUTOSCALER_POLICY_FILE": str(Path.cwd() / "scaling.toml"),
            "MILLRACE_AUTOSCALER_SOCKET": str(tmp_path / "data/scaling.sock"),
            "MILLRACE_AUTOSCALER_ACTUATOR": "embedded",
        }
    )
    for role in ("api", "gpu-consumer", "intake"):
        assert role_env(role, env) == {}


@pytest.mark.parametrize(
    "name",
    [
        "AUTOSCALER_POLICY_FILE",
        "AUTOSCALER_SOCKET",
        "AUTOSCALER_METRICS_PORT",
        "GPU_REPLICA_ID",
        "GPU_STANDBY",
    ],
)
def test_up_sets_the_variables_of_scaling_itself(name: str) -> None:
    with pytest.raises(SettingsError, match=f"MILLRACE_{name}: "):
        refuse_reserved_variables({f"MILLRACE_{name}": "1"})


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not change the logging and the signal handlers of the test process."""
    monkeypatch.setattr("cli.stack.up_command.configure_logs", lambda _: None)
    monkeypatch.setattr("cli.stack.up_command.stop_on_signals", threading.Event)
    for name in os.environ:
        if name.startswith("MILLRACE_"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (None, ["No such file"]),
        ("", ["The file has no table."]),
        (
            "[pools.a]\nreplicas_min = -1\nmode = 'on'\n",
            ["[pools.a] replicas_min", "[pools.a] mode"],
        ),
        ("[defaults]\nreplicas_min = 65\nreplicas_max = 70\n", ["at most 64"]),
    ],
    ids=["missing", "empty", "two problems", "too many replicas"],
)
def test_bad_policies_are_wrong_usage_before_anything_starts(
    tmp_path: Path, text: str | None, messages: list[str]
) -> None:
    file, data = tmp_path / "scaling.toml", tmp_path / "data"
    if text is not None:
        file.write_text(text)

    done = CliRunner().invoke(app, ["up", "--data", str(data), "--autoscale", str(file)])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert [message for message in messages if message not in done.stderr] == []
    assert not data.exists()


@pytest.mark.usefixtures("own_process")
def test_the_option_reaches_the_stack(
    policy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[StackOptions] = []
    monkeypatch.setattr("cli.stack.up_command._run", lambda options, _: started.append(options))
    monkeypatch.chdir(tmp_path)

    for arguments in ([], ["--autoscale", policy_file.name]):
        assert CliRunner().invoke(app, ["up", "--data", "data", *arguments]).exit_code == 0

    assert [options.autoscale for options in started] == [None, policy_file]


def test_a_stack_waits_for_no_credit_of_a_pool_that_begins_empty(
    policy_file: Path, tmp_path: Path
) -> None:
    models = tuple(served_model(name, "simulated", None) for name in ("empty", "placed"))
    options = StackOptions(data=tmp_path / "data", port=0, models=models, autoscale=policy_file)
    stack = EmbeddedStack(options, {}, lambda: False)
    policies = read_stack_policies(policy_file)
    stack.scaled_pools = scaled_pools(policies, [model.pool for model in models], AT_S)

    assert {pool for pool, _ in stack._pool_classes()} == {"placed-simulated"}


@pytest.mark.parametrize("is_scaled", [True, False])
def test_intake_has_normal_priority_where_decisions_need_its_backlog(
    policy_file: Path, tmp_path: Path, is_scaled: bool
) -> None:
    autoscale = policy_file if is_scaled else None
    options = StackOptions(data=tmp_path / "data", port=0, models=(), autoscale=autoscale)
    stack = EmbeddedStack(options, {}, lambda: False)

    assert (stack._role_child("intake", "intake", {}).niceness == 0) == is_scaled
    assert stack._role_child("batcher", "batcher", {}).niceness > 0


def test_tables_of_pools_that_the_stack_has_not_are_told() -> None:
    tables = "".join(f'[pools."{name}"]\n' for name in ("chat", "chat-*", "embed-*", "chat-b"))
    policies = read_policies(tables.encode(), "scaling.toml")

    assert unserved_tables(policies, ["chat-a", "embed-x"]) == ("chat", "chat-b")
    assert unserved_tables(policies, []) == ("chat", "chat-*", "embed-*", "chat-b")
