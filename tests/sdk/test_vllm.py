"""Goal: on real vLLM the official clients work, and tenants share no prefix cache."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from cli.demo.demo_models import ensure_tiny_llama, minilm_path
from tests.sdk.checks.catalogue import VLLM, checks
from tests.sdk.runs import VERSIONS, Reports, reports_of
from tests.sdk.sites import EMBEDDING_MODEL, new_key, vllm_site
from tests.support.stacks import Stack, running_stack

pytestmark = pytest.mark.timeout(400)  # the first test includes environment, stack and all checks


@pytest.fixture(scope="module")
def vllm_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack of two real models: a random text model and an embedding model."""
    data = tmp_path_factory.mktemp("vllm")
    llama = ensure_tiny_llama(data / "llama")
    models = ("--model", f"llama={llama}", "--model", f"{EMBEDDING_MODEL}={minilm_path()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_ENGINE_VLLM_TOOL_CALL_PARSER", "hermes")
        with running_stack(data / "stack", "--engine", "vllm", *models, model="llama") as running:
            yield running


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
        body = {"model": "llama", "prompt": prompt, "max_tokens": 1, **options}
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
