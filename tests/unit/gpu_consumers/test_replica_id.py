"""Goal: a replica has the id that its platform knows it by, else a new one for each process."""

import pytest

from core.errors import SettingsError
from gpu_consumers.settings import ReplicaSettings
from gpu_consumers.wiring import new_replica_id

POOL = {"MILLRACE_GPU_POOL": "pool"}


def test_a_replica_takes_the_id_of_its_platform() -> None:
    settings = ReplicaSettings.from_env({**POOL, "MILLRACE_GPU_REPLICA_ID": "pool-host-0a1b2c3d"})

    assert new_replica_id(settings) == "pool-host-0a1b2c3d"


def test_a_replica_without_one_has_a_new_id_for_each_process() -> None:
    ids = {new_replica_id(ReplicaSettings.from_env(POOL)) for _ in range(10)}

    assert len(ids) == 10
    assert all(one.startswith("pool-") for one in ids)


@pytest.mark.parametrize("text", ["", "a b", "a/b", "a\n", "x" * 201])
def test_an_id_that_fits_no_client_name_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="MILLRACE_GPU_REPLICA_ID"):
        ReplicaSettings.from_env({**POOL, "MILLRACE_GPU_REPLICA_ID": text})
