"""Goal: on real vLLM the official clients work, and tenants share no prefix cache."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cli.demo.demo_models import minilm_path
from tests.e2e.registry_stack import REPLICA_S_MAX, Registry, pushed, running_replica
from tests.sdk.checks.catalogue import VLLM, checks
from tests.sdk.runs import VERSIONS, Reports, reports_of
from tests.sdk.sites import EMBEDDING_MODEL, new_key, vllm_site
from tests.support.stacks import Stack
from tests.support.until import until

pytestmark = pytest.mark.timeout(400)  # the first test includes environment, stack and all checks


@pytest.fixture(scope="module")
def vllm_stack(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack of two real models: a random text model and an embedding model."""
    folder = tmp_path_factory.mktemp("minilm")
    pushed(registry.stack, minilm_path(), EMBEDDING_MODEL)
    with running_replica(registry, EMBEDDING_MODEL, folder) as replica:
        await_embeddings(registry.stack, replica, folder / "replica.log")
        yield registry.stack


def await_embeddings(stack: Stack, replica: subprocess.Popen[bytes], log: Path) -> None:
    body = {"model": EMBEDDING_MODEL, "input": "a"}

    def answers() -> bool:
        assert replica.poll() is None, log.read_text()[-5_000:]
        return stack.request("POST", "/v1/embeddings", json=body).status_code == 200

    until(answers, "embeddings", REPLICA_S_MAX)


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, vllm_stack: Stack) -> Reports:
    """The reports of the real models."""
    return reports_of(request, "test_on_vllm", partial(vllm_site, vllm_stack))


@pytest.mark.parametrize(
    ("version", "check"), [(v, check) for v in VERSIONS for check in checks(VLLM, v)]
)
def test_on_vllm(version: str, check: str, reports: Reports) -> None:
    if failure := reports(version)[check]:
        pytest.fail(failure, pytrace=False)


def test_real_models_are_not_marked_as_simulated(vllm_stack: Stack) -> None:
    assert {model.owned_by for model in vllm_stack.client.models.list()} == {"millrace"}


def test_a_tenant_does_not_learn_what_another_has_sent(vllm_stack: Stack) -> None:
    prompt = "a prompt of several blocks of the cache " * 12

    def cached_tokens(key: str, **options: object) -> int:
        body = {"model": vllm_stack.model, "prompt": prompt, "max_tokens": 1, **options}
        stack = replace(vllm_stack, key=key)
        usage = stack.request("POST", "/v1/completions", json=body).json()["usage"]
        return int((usage["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"])

    first, second = new_key(vllm_stack), new_key(vllm_stack)
    assert cached_tokens(first) == 0
    assert cached_tokens(first) > 0
    assert cached_tokens(second) == 0
    assert cached_tokens(second, cache_salt="mine") == 0
    assert cached_tokens(second, cache_salt="mine") > 0
    assert cached_tokens(first, cache_salt="mine") == 0
