"""Settings of an installation under drill: short leases and sessions, so that minutes suffice."""

import json
from collections.abc import Mapping
from typing import Final

SESSION_S: Final = 2.0
"""Sessions of group members and leases of intake."""

FINALISER_LEASE_S: Final = 3.0
"""The shortest that the finaliser takes."""

CRASHES_MAX: Final = 50
"""Kills are ours, not the items': none may be taken for poison."""

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
"""What every role of every drill reads, unless the drill says otherwise."""

POISON: Final[Mapping[str, str]] = {
    "crash": "item_crashes_engine",
    "freeze": "item_crashes_engine",
    "oom": "item_out_of_memory",
    "hang": "item_timeout",
    "overflow": "context_length_exceeded",
}
"""Fault of the simulated engine to the code that its item must end with."""

ENDS_ITS_PROCESS: Final = frozenset({"crash", "freeze"})

NAN: Final = "nan"
"""A fault whose item must succeed: its answer is valid JSON, with null for what is no number."""

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
