"""Goal: beside real vLLM no body delays another tenant by half a second, or grows the replica much.

All hostile bodies of the table, and generated ones: a field of the API with a value that is long,
deep, wide or of another type.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cli.demo.demo_models import ensure_tiny_llama, minilm_path
from tests.e2e.hostile_calls import (
    BODY_TIMEOUT_S,
    Call,
    HostileRuns,
    run_all_beside,
    run_beside,
)
from tests.e2e.remote_engine import RemoteEngine, running_engine
from tests.support.hostile_bodies import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MANY,
    RERANK,
    SCORE,
    chat_bodies,
    deep_list,
    nested,
    pooling_bodies,
)

pytestmark = pytest.mark.timeout(1800)

MODEL = "m"
ENV = {"KIND": "vllm", "MODEL_NAME": MODEL, "CONCURRENCY": "20", "VLLM_MAX_NUM_SEQS": "16"}
WORST_CALL_S_MAX = 0.5
GROWN_BYTES_MAX = 200 * 1024 * 1024
OTHER_CHAT: Call = (
    CHAT,
    b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"Hi"}]}',
)
OTHER_INPUT: Call = (EMBEDDINGS, b'{"model":"m","input":"Hi"}')


@pytest.fixture(scope="module")
def chat_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    folder = tmp_path_factory.mktemp("chat")
    model = ensure_tiny_llama(folder / "tiny-llama")
    env = ENV | {"MODEL_PATH": str(model), "VLLM_TOOL_CALL_PARSER": "hermes"}
    with running_engine(folder, env) as engine:
        yield engine


@pytest.fixture(scope="module")
def inputs_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    folder: Path = tmp_path_factory.mktemp("inputs")
    with running_engine(folder, ENV | {"MODEL_PATH": str(minilm_path())}) as engine:
        yield engine


def check(runs: HostileRuns, record: Callable[[str, object], None]) -> None:
    worst = max(runs.by_name, key=lambda name: runs.by_name[name].worst_call_s)
    record("bodies", len(runs.by_name))
    record("worst", f"{worst}: {runs.by_name[worst].worst_call_s:.3f} s")
    record("grown_mib", runs.grown_bytes // 2**20)
    assert runs.slower_than(WORST_CALL_S_MAX) == {}
    assert runs.grown_bytes < GROWN_BYTES_MAX


async def test_bodies_of_chats(
    chat_engine: RemoteEngine, record_property: Callable[[str, object], None]
) -> None:
    bodies = chat_bodies(MODEL)
    assert len(bodies) >= 50
    check(await run_all_beside(chat_engine, bodies, OTHER_CHAT), record_property)


async def test_bodies_of_inputs(
    inputs_engine: RemoteEngine, record_property: Callable[[str, object], None]
) -> None:
    bodies = pooling_bodies(MODEL)
    check(await run_all_beside(inputs_engine, bodies, OTHER_INPUT), record_property)


_VALUES = st.sampled_from(
    [
        *([1] * MANY, ["a"] * MANY, [{}] * MANY, [[]] * MANY, [None] * 2_048, ["a"] * 2_048),
        *("a" * 1_000_000, "\U0001f469\u200d" * 100_000, " " * 1_000_000, "{{" * 500_000),
        *(nested(20, {}), nested(60, {"pattern": "(a|b)*" * 40}), deep_list(100)),
        *({str(n): n for n in range(2_048)}, {"role": "user", "content": ["a"] * 2_000}),
        *(10**18, -1, 1e308, True, None, "", [], {}),
    ]
)
_FIELDS = st.sampled_from(
    [
        *("messages", "prompt", "input", "stop", "tools", "tool_choice", "response_format"),
        *("structured_outputs", "logit_bias", "bad_words", "allowed_token_ids", "stop_token_ids"),
        *("documents", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "n"),
        *("max_tokens", "truncate_prompt_tokens", "repetition_detection", "vllm_xargs", "user"),
        *("query", "text_1", "text_2", "queries", "items", "data_1", "data_2", "metadata"),
        *("stream_options", "suffix", "prompt_embeds", "kv_transfer_params", "unknown"),
    ]
)


def _wrapped(value: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([value, [value], {"a": value}, [[value]], {"content": value}])


_BODIES = st.dictionaries(_FIELDS, _VALUES.flatmap(_wrapped), min_size=1, max_size=3)
_GENERATED = settings(
    max_examples=100,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def check_body(engine: RemoteEngine, body: Call, other: Call) -> None:
    run = asyncio.run(run_beside(engine, body, other, BODY_TIMEOUT_S))
    assert run.worst_call_s < WORST_CALL_S_MAX
    assert len(run.answer.body) < 2 * 2**20


@_GENERATED
@given(endpoint=st.sampled_from([CHAT, COMPLETIONS]), fields=_BODIES)
def test_generated_bodies_of_chats(
    chat_engine: RemoteEngine, endpoint: str, fields: dict[str, Any]
) -> None:
    base = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    if endpoint == COMPLETIONS:
        base = {"model": MODEL, "max_tokens": 5, "prompt": "Hi"}
    check_body(chat_engine, (endpoint, msgspec.json.encode(base | fields)), OTHER_CHAT)


@_GENERATED
@given(endpoint=st.sampled_from([EMBEDDINGS, SCORE, RERANK]), fields=_BODIES)
def test_generated_bodies_of_inputs(
    inputs_engine: RemoteEngine, endpoint: str, fields: dict[str, Any]
) -> None:
    base = {"model": MODEL, "input": "a", "query": "a", "documents": ["b"], "text_1": "a"}
    check_body(inputs_engine, (endpoint, msgspec.json.encode(base | fields)), OTHER_INPUT)
