"""Goal: a client that goes away frees its KV cache, as vLLM itself counts, long before its end."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from cli.demo.demo_models import ensure_tiny_llama
from tests.e2e.online_streams import ENDPOINT
from tests.support.stacks import Stack, await_true, running_stack

MODEL = "tiny"
FREED_S_MAX = 60.0
ROUNDS = 3
ASK = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "stream": True,
    "max_tokens": 2000,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack on real vLLM, whose own statistics the replica shows."""
    folder = tmp_path_factory.mktemp("leaving-vllm")
    model = ensure_tiny_llama(folder / "tiny-llama")
    options = ("--engine", "vllm", "--model", f"{MODEL}={model}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "vllm_stats"))
        with running_stack(folder / "stack", *options, model=MODEL) as running:
            yield running


@pytest.fixture(scope="module")
def metrics(stack: Stack) -> Iterator[httpx.Client]:
    """A connection to the replica's metrics, since each look is in the time that is measured."""
    ports = stack.state.metrics_ports
    (port,) = [number for role, number in ports.items() if role.startswith("gpu-")]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        yield client


def vllm_says(metrics: httpx.Client, *patterns: str) -> list[float]:
    """Return the numbers of vLLM's own metrics."""
    text = metrics.get("/metrics").text
    return [
        float(re.findall(rf"^vllm:{pattern} (\S+)$", text, re.MULTILINE)[0]) for pattern in patterns
    ]


def vllm_holds(metrics: httpx.Client) -> list[float]:
    """Return the sequences that vLLM's scheduler runs, and the share of its KV cache in use."""
    return vllm_says(metrics, "num_requests_running{.*}", "kv_cache_usage_perc{.*}")


def written_out(metrics: httpx.Client) -> float:
    """Return the sequences that have all their tokens."""
    (count,) = vllm_says(metrics, 'request_success_total{.*finished_reason="length".*}')
    return count


@pytest.mark.timeout(300)
def test_a_client_that_leaves_frees_its_kv_cache(
    stack: Stack, metrics: httpx.Client, record_property: Callable[[str, object], None]
) -> None:
    """No call is written to its end, however slow the machine: the records say how fast it was."""
    before = written_out(metrics)
    headers = {"authorization": f"Bearer {stack.key}"}
    freed_s = []
    for _ in range(ROUNDS):
        with (
            httpx.Client(base_url=stack.url, headers=headers, timeout=60) as client,
            client.stream("POST", ENDPOINT, json=ASK) as answer,
        ):
            assert answer.status_code == 200
            pieces = answer.iter_raw()  # kept: the connection closes with it
            next(pieces)
            await_true(lambda: min(vllm_holds(metrics)) > 0, "its place in vLLM")
            began_s = time.monotonic()
        await_true(lambda: vllm_holds(metrics) == [0, 0], "an empty vLLM", FREED_S_MAX)
        freed_s.append(round(time.monotonic() - began_s, 3))

    record_property("freed_s", freed_s)
    assert written_out(metrics) == before, freed_s
