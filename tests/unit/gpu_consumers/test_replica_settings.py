"""Goal: no setting allows to charge an item that never ran alone."""

import pytest

from core.errors import SettingsError
from gpu_consumers.settings import ReplicaSettings


@pytest.mark.parametrize("crashes_max", ["1", "2"])
def test_crashes_max_is_at_least_three(crashes_max: str) -> None:
    env = {"MILLRACE_GPU_POOL": "p", "MILLRACE_GPU_CRASHES_MAX": crashes_max}
    with pytest.raises(SettingsError, match="CRASHES_MAX"):
        ReplicaSettings.from_env(env)
