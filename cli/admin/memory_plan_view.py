"""Shows a memory plan as a table, for `millrace models plan`."""

from collections.abc import Sequence
from typing import Final

from registry.memory_plan.memory_plan import MemoryPlan

HEADERS: Final = ("memory of each device", "bytes", "GiB")

_GIB: Final = 2**30


def plan_rows(plan: MemoryPlan) -> list[Sequence[str]]:
    """Return the rows of the table: what is needed, what is left, and what fits in it."""
    reserve = plan.reserve
    rows: list[Sequence[str]] = [
        _size("device", plan.device_bytes),
        _size(f"usable ({plan.memory_share:.0%})", plan.usable_bytes),
        _size("weights", plan.weights_bytes),
        _size("activations", reserve.activation_bytes),
        _size("CUDA graphs", reserve.graph_bytes),
        _size("runtime", reserve.runtime_bytes),
    ]
    if reserve.adapter_bytes:
        rows.append(_size("adapters", reserve.adapter_bytes))
    if plan.kv_token_bytes:
        rows += [
            _size("KV cache (kv_cache_memory_bytes)", plan.kv_cache_memory_bytes),
            ("KV cache of a token", str(plan.kv_token_bytes), ""),
            ("tokens in the KV cache", str(plan.kv_tokens), ""),
            (f"sequences of {plan.max_model_len} tokens", str(plan.sequences_at_max_len), ""),
        ]
    rows.append(("devices of a replica", str(plan.devices), ""))
    rows.append(("fits", "yes" if plan.fits else "no", ""))
    rows += [("note", note, "") for note in plan.notes]
    return rows


def _size(name: str, size: int) -> Sequence[str]:
    return name, str(size), f"{size / _GIB:.2f}"
