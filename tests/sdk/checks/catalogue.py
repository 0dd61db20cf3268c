"""The checks, and the engines on which they run."""

from collections.abc import Callable, Coroutine
from types import FunctionType, ModuleType

from tests.sdk.checks import (
    batches,
    chat,
    deadlines,
    durable,
    embeddings,
    failures,
    files,
    generation,
    models,
    online_headers,
    pooling,
    raw_answers,
    repeats,
    retries,
    webhook_endpoints,
    webhooks,
)
from tests.sdk.checks.site import Site

Check = Callable[[Site], Coroutine[None, None, None] | None]

SIMULATED = (
    files,
    batches,
    models,
    failures,
    raw_answers,
    chat,
    embeddings,
    online_headers,
    deadlines,
    retries,
    repeats,
    durable,
    webhooks,
    webhook_endpoints,
)
VLLM = (chat, generation, embeddings, pooling)


def checks(modules: tuple[ModuleType, ...], version: str) -> dict[str, Check]:
    """Return the public functions that the modules define, by `module.function`.

    Modules whose `CLIENT_MAJOR_MIN` is above the release are left out.
    """
    major = int(version.partition(".")[0])
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": value
        for module in modules
        if major >= getattr(module, "CLIENT_MAJOR_MIN", 0)
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
