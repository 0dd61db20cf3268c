"""Many open streams, and what the client of each observes."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from tests.support.stacks import Stack

ENDPOINT = "/v1/chat/completions"


@dataclass
class StreamSeen:
    """What the client of one stream observes."""

    text: str  # of its only message; unique
    status: int = 0  # 0: no response
    pieces: list[str] = field(default_factory=list)
    error: str | None = None  # code in the envelope, or the transport error
    done: bool = False
    executions: set[str] = field(default_factory=set)  # the ids in its chunks
    started: asyncio.Event = field(default_factory=asyncio.Event)  # it has a chunk, or an end

    @property
    def how(self) -> str:
        """How it ended; `hung` without an end."""
        if self.error is not None:
            return "error"
        return "done" if self.done else "hung"


async def _read(client: httpx.AsyncClient, body: dict[str, object], seen: StreamSeen) -> None:
    try:
        async with client.stream("POST", ENDPOINT, json=body) as answer:
            seen.status = answer.status_code
            if answer.status_code != 200:
                seen.error = json.loads(await answer.aread())["error"]["code"]
                return
            async for line in answer.aiter_lines():
                _parse_line(line, seen)
    except httpx.TransportError as error:
        seen.error = type(error).__name__
    finally:
        seen.started.set()


def _parse_line(line: str, seen: StreamSeen) -> None:
    if not line.startswith("data: "):
        return
    assert not seen.done, "an event came after the end"
    assert seen.error is None, "an event came after the error"
    payload = line.removeprefix("data: ")
    if payload == "[DONE]":
        seen.done = True
        return
    event = json.loads(payload)
    if "error" in event:
        seen.error = event["error"]["code"]
        return
    seen.pieces.append(event["choices"][0]["delta"]["content"])
    seen.started.set()
    seen.executions.add(event["id"])


def run_streams(
    stack: Stack, texts: list[str], *, max_tokens: int, timeout_ms: int, disturb: Callable[[], None]
) -> list[StreamSeen]:
    """Open a stream for each text, call `disturb` when all have a chunk, and return the streams.

    Fails when one of them is still open 10 s after its deadline.
    """
    return asyncio.run(_run(stack, texts, max_tokens, timeout_ms, disturb))


async def _run(
    stack: Stack, texts: list[str], max_tokens: int, timeout_ms: int, disturb: Callable[[], None]
) -> list[StreamSeen]:
    seen = [StreamSeen(text) for text in texts]
    headers = {"authorization": f"Bearer {stack.key}", "x-request-timeout-ms": str(timeout_ms)}
    limits = httpx.Limits(max_connections=len(texts))
    async with httpx.AsyncClient(
        base_url=stack.url, headers=headers, limits=limits, timeout=None
    ) as client:
        bodies = [
            {
                "model": stack.model,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": max_tokens,
                "stream": True,
            }
            for text in texts
        ]
        tasks = [
            asyncio.create_task(_read(client, body, one))
            for body, one in zip(bodies, seen, strict=True)
        ]
        async with asyncio.timeout(timeout_ms / 1000 + 10):
            await asyncio.gather(*(one.started.wait() for one in seen))
            await asyncio.to_thread(disturb)
            await asyncio.gather(*tasks)
    return seen


def replica_metric(stack: Stack, name: str) -> float:
    """Return a number of the one replica; -1 while it is unavailable, 0 before the first count."""
    (replica,) = [role for role in stack.state.metrics_ports if role.startswith("gpu-")]
    return role_metric(stack, replica, name)


def running_calls(stack: Stack) -> float:
    """Return the calls that run on the one replica."""
    return replica_metric(stack, "millrace_calls_running")


def role_metric(stack: Stack, role: str, name: str) -> float:
    """Return a number of a role; -1 while it is unavailable, 0 before the first count."""
    port = stack.state.metrics_ports[role]
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30, verify=False).text
    except httpx.TransportError:
        return -1.0
    lines = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].split()[1]) if lines else 0.0


def count_ends(seen: list[StreamSeen]) -> Counter[str]:
    """Count how streams ended."""
    return Counter(one.how for one in seen)
