"""Goal: a changed policy file is in force at once; a bad one keeps the old policies."""

from pathlib import Path

import pytest

from autoscaler.autoscaler_role import ActuatorSet, actuator_name
from autoscaler.policies.policy_file import PolicyFile
from autoscaler.policies.policy_reader import InvalidPoliciesError
from autoscaler.settings import AutoscalerSettings
from core.errors import SettingsError

TEXT = "[defaults]\nreplicas_max = 3\n"


def read(path: Path, text: str) -> ActuatorSet:
    path.write_text(text)
    return ActuatorSet(PolicyFile(path), AutoscalerSettings(policy_file=path))


def test_a_change_is_in_force_and_a_bad_file_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scaling.toml"
    actuators = read(path, TEXT)
    path.write_text(TEXT.replace("3", "12"))
    actuators.refresh()
    assert actuators.policies.defaults.replicas_max == 12
    path.write_text("[defaults]\nreplicas_max = -1\n")
    actuators.refresh()
    assert actuators.policies.defaults.replicas_max == 12
    assert "the scaling policies are not valid" in caplog.text


def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidPoliciesError):
        read(tmp_path / "scaling.toml", "replicas")


def test_the_actuator_of_the_settings_is_that_of_pools_without_one(tmp_path: Path) -> None:
    actuators = read(tmp_path / "scaling.toml", TEXT)
    settings = AutoscalerSettings(policy_file=tmp_path, actuator="cluster-1")
    assert actuator_name(settings, actuators.policies, "any") == "cluster-1"


def test_the_policy_file_is_required() -> None:
    with pytest.raises(SettingsError, match="MILLRACE_AUTOSCALER_POLICY_FILE"):
        AutoscalerSettings.from_env({})
