"""Runs a few requests on a new engine before its replica joins, so that no client meets a cold one.

The first request of a shape may compile kernels, capture graphs or allocate memory. An engine that
cannot run these requests must not get any: its replica does not serve.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from core.errors import MillraceError
from gpu_consumers.engines.engine import Engine, EngineAnswer

_LOG = logging.getLogger(__name__)

_SMALL: Final = "Warm up."
_LARGE_WORDS: Final = (1000, 100)
"""Words of the large prompt: the first number that the context window admits counts."""

_BATCH: Final = 8
"""Requests that run at once in the last step."""

_MAKERS: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 8, "temperature": 0},
    "/v1/chat/completions": lambda text: {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
    },
    "/v1/embeddings": lambda text: {"input": text},
    "/v1/classify": lambda text: {"input": text},
    "/v1/score": lambda text: {"text_1": _SMALL, "text_2": text},
}
"""How the body for each endpoint is made from a text. A model serves some of the endpoints."""


class WarmUpError(MillraceError):
    """The engine did not answer the requests that warm it up."""

    code = "warm_up_failed"


async def warm_up(engine: Engine, model: str, *, timeout_s: float) -> None:
    """Run requests of several shapes for each endpoint that the model serves.

    Each endpoint gets a small prompt, a large one, and several at once. Raises WarmUpError if one
    of them fails, if no endpoint answers, or after `timeout_s`.
    """
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            served = [path for path in _MAKERS if await _warm_endpoint(engine, path, model)]
    except TimeoutError:
        raise WarmUpError(f"The engine was not warm after {timeout_s:g} s.") from None
    if not served:
        raise WarmUpError("The engine serves no endpoint.")
    seconds = round(time.monotonic() - began_s, 3)
    _LOG.info("warm", extra={"endpoints": served, "seconds": seconds})


async def _warm_endpoint(engine: Engine, endpoint: str, model: str) -> bool:
    """Run the requests of an endpoint; return False if the model does not serve it."""
    if not await _run(engine, endpoint, model, [_SMALL]):
        return False
    for words in _LARGE_WORDS:
        if await _run(engine, endpoint, model, ["warm " * words]):
            break
    return await _run(engine, endpoint, model, [f"{number}. {_SMALL}" for number in range(_BATCH)])


async def _run(engine: Engine, endpoint: str, model: str, texts: Sequence[str]) -> bool:
    """Run a request for each text; return whether all succeeded, False if one is refused.

    Raises WarmUpError for a request that fails or gets no answer.
    """
    make, answers = _MAKERS[endpoint], dict[int, EngineAnswer]()
    bodies = [msgspec.json.encode({"model": model, **make(text)}) for text in texts]
    await engine.execute(endpoint, bodies, answers.__setitem__)
    statuses = [answer.status_code for answer in answers.values()]
    if len(statuses) < len(bodies) or max(statuses) >= 500:
        raise WarmUpError(f"{endpoint} failed.", statuses=sorted(set(statuses)))
    return max(statuses) < 400
