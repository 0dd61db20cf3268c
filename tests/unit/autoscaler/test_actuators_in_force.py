"""Goal: a changed policy file is in force at once; a bad one keeps the old policies."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.actuators.embedded import EmbeddedActuator
from autoscaler.actuators_in_force import EMBEDDED, ActuatorsInForce
from autoscaler.policies.policy_file import PolicyFile
from autoscaler.policies.policy_reader import InvalidPoliciesError
from autoscaler.settings import AutoscalerSettings
from core.clock import SystemClock
from core.errors import SettingsError
from tests.support.clock import ManualClock
from tests.support.memory_actuators import dependencies_of

TEXT = "[defaults]\nreplicas_max = 3\n"
COMMANDS = """
[defaults]
actuator = "one"

[actuators.one]
kind = "command"
command = ["true"]

[actuators.two]
kind = "command"
command = ["true"]
"""


def read(path: Path, text: str, *, in_up: bool = False) -> ActuatorsInForce:
    path.write_text(text)
    embedded = (lambda: EmbeddedActuator(str(path))) if in_up else None
    dependencies = dependencies_of(SystemClock(), embedded)
    return ActuatorsInForce(PolicyFile(path), dependencies, EMBEDDED)


async def test_a_change_is_in_force_and_a_bad_file_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scaling.toml"
    actuators = read(path, TEXT)
    path.write_text(TEXT.replace("3", "12"))
    await actuators.refresh()
    assert actuators.policies.defaults.replicas_max == 12
    path.write_text("[defaults]\nreplicas_max = -1\n")
    await actuators.refresh()
    assert actuators.policies.defaults.replicas_max == 12
    assert "the scaling policies are not valid" in caplog.text


async def test_an_actuator_stays_open_while_its_table_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "scaling.toml"
    actuators = read(path, COMMANDS)
    await actuators.open()
    one, two = actuators.actuators["one"], actuators.actuators["two"]
    path.write_text(COMMANDS.replace('"true"]\n\n[actuators.two]', '"false"]\n\n[actuators.two]'))
    await actuators.refresh()
    assert actuators.actuators.keys() == {"one", "two"}
    assert actuators.actuators["one"] is not one
    assert actuators.actuators["two"] is two
    path.write_text(TEXT)
    await actuators.refresh()
    assert not actuators.actuators
    await actuators.close()


async def test_an_actuator_that_cannot_be_built_leaves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scaling.toml"
    actuators = read(path, COMMANDS)
    await actuators.open()
    path.write_text(
        COMMANDS.replace('kind = "command"\ncommand = ["true"]', 'kind = "embedded"', 1)
    )
    await actuators.refresh()
    assert actuators.actuators.keys() == {"two"}
    assert "the actuator cannot be used" in caplog.text


async def test_the_actuator_of_up_needs_no_table(tmp_path: Path) -> None:
    actuators = read(tmp_path / "scaling.toml", TEXT, in_up=True)
    await actuators.open()
    assert actuators.name_of(actuators.policies, "any") == EMBEDDED
    assert actuators.actuators.keys() == {EMBEDDED}


async def test_a_pool_has_the_actuator_of_its_policy(tmp_path: Path) -> None:
    actuators = read(tmp_path / "scaling.toml", COMMANDS)
    assert actuators.name_of(actuators.policies, "any") == "one"


def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidPoliciesError):
        read(tmp_path / "scaling.toml", "replicas")


def test_the_policy_file_is_required() -> None:
    with pytest.raises(SettingsError, match="MILLRACE_AUTOSCALER_POLICY_FILE"):
        AutoscalerSettings.from_env({})


async def test_an_actuator_that_could_not_be_opened_is_tried_again_each_30_s(
    tmp_path: Path,
) -> None:
    path, clock, calls = tmp_path / "scaling.toml", ManualClock(), []

    def open_embedded() -> EmbeddedActuator:
        calls.append(clock.now_s)
        if len(calls) < 3:
            raise SettingsError("not yet")
        return EmbeddedActuator(str(path))

    actuators = read(path, TEXT)
    actuators._dependencies = replace(
        actuators._dependencies,
        clock=clock,
        open_embedded=open_embedded,
    )
    path.write_text(TEXT.replace("3", "12"))
    for _ in range(80):
        await actuators.refresh()
        clock.advance(1)
    assert calls == [0, 30, 60]
    assert actuators.actuators.keys() == {EMBEDDED}
