"""Settings of drilled installations: short leases and sessions, so that minutes suffice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SESSION_S: Final = 2.0
"""Session timeout of group members and lease duration of intake."""

FINALISER_LEASE_S: Final = 3.0
"""The shortest lease that the finaliser accepts."""

CRASHES_MAX: Final = 50
"""Drills kill processes on purpose, so no item may count as poison."""

STALL_LIMIT_S: Final = 15.0

ROLES: Final[Mapping[str, str]] = {
    "MILLRACE_KAFKA_SESSION_TIMEOUT_S": f"{SESSION_S:g}",
    "MILLRACE_KAFKA_GROUP_PROTOCOL": "consumer",
    "MILLRACE_KAFKA_DELIVERY_TIMEOUT_S": "60",
    "MILLRACE_INTAKE_LEASE_TTL_S": f"{SESSION_S:g}",
    "MILLRACE_INTAKE_STALL_LIMIT_S": f"{STALL_LIMIT_S:g}",
    "MILLRACE_FINALISER_LEASE_S": f"{FINALISER_LEASE_S:g}",
    "MILLRACE_GPU_CRASHES_MAX": str(CRASHES_MAX),
    "MILLRACE_WRITER_RETRY_BACKOFF_S": "1",
}
"""Environment of every role, unless a drill overrides it."""

POISON: Final[Mapping[str, str]] = {
    "crash": "item_crashes_engine",
    "freeze": "item_crashes_engine",
    "oom": "item_out_of_memory",
    "hang": "item_timeout",
    "overflow": "context_length_exceeded",
}
"""Fault of the simulated engine to the error code of its item."""

CRASHING_FAULTS: Final = frozenset({"crash", "freeze"})

NAN: Final = "nan"
"""A fault whose item succeeds: the answer is valid JSON, with null for NaN."""

POISONED_ROLES: Final[Mapping[str, str]] = {
    **ROLES,
    "MILLRACE_GPU_CRASHES_MAX": "3",
    "MILLRACE_GPU_ENGINE_REACTION_S": "2",
    "MILLRACE_GPU_STUCK_S_MAX": f"{SESSION_S:g}",
    "MILLRACE_ENGINE_ITEM_TIMEOUT_S": "3",
    "MILLRACE_ENGINE_SIMULATED_FAULTS": json.dumps(
        [{"contains": f"POISON-{fault}", "fault": fault} for fault in (*POISON, NAN)]
    ),
}

CLUSTER_ROLES: Final[Mapping[str, str]] = {
    **ROLES,
    "MILLRACE_KAFKA_REPLICATION_FACTOR": "3",
    "MILLRACE_KAFKA_MIN_INSYNC_REPLICAS": "2",
}

CLOCK_SKEW_S: Final = 400
CLOCK_FOLDER: Final = Path(__file__).parents[1] / "skewed"
"""Lies on the PYTHONPATH of every host; it has no effect without the variable of `skewed_clock`."""


def skewed_clock(seconds: float) -> Mapping[str, str]:
    """Return the environment of a host whose wall clock is `seconds` ahead; behind when negative.

    Python's clock is shifted in every role of the host. libfaketime is no option: under it
    librdkafka's clients wait for as long as the clock is ahead, which no such host does.
    """
    return {"CHAOS_CLOCK_OFFSET_S": str(seconds), "MILLRACE_UP_PASS_ENV": "CHAOS_*"}
