"""A memory plan as JSON, for programs."""

from typing import Any

import msgspec

from registry.memory_plan.memory_plan import MemoryPlan


def plan_document(plan: MemoryPlan) -> dict[str, Any]:
    """Return the plan as a JSON object: its fields, and what follows from them."""
    found: dict[str, Any] = msgspec.to_builtins(plan)
    return found | {
        "usable_bytes": plan.usable_bytes,
        "required_bytes": plan.required_bytes,
        "kv_tokens": plan.kv_tokens,
        "sequences_at_max_len": plan.sequences_at_max_len,
        "fits": plan.fits,
    }
