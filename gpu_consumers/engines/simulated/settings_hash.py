"""Names the settings of the simulated engine, as the engine hash of vLLM names its options."""

from hashlib import sha256

import msgspec

from gpu_consumers.engines.settings import EngineSettings


def simulated_engine_hash(settings: EngineSettings) -> str:
    """Return the SHA-256 of the settings on which answers and their times depend, 64 hex digits."""
    fields = settings.model_dump(mode="json")
    own = {name: value for name, value in fields.items() if name.startswith("simulated_")}
    identity = {"kind": settings.kind, "concurrency": settings.items_at_once, **own}
    return sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()
