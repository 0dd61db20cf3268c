"""Which checks there are, and on which engine each runs."""

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
    raw_answers,
    repeats,
    retries,
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
)
VLLM = (chat, generation, embeddings)


def checks(modules: tuple[ModuleType, ...]) -> dict[str, Check]:
    """Return the public functions that the modules define, by `module.function`."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
