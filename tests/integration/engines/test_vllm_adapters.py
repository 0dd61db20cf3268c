"""Goal: a real vLLM with adapters answers as each of them does alone, and shows its weight version.

One start of vLLM for all cases: `adapter_program`.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.engines.adapter_program import ASKED, BAD, GOOD, PROMPTS, VERSION
from tests.support.vllm_programs import run_program

pytestmark = pytest.mark.timeout(400)
A, B, C = GOOD.values()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, vllm_host: None) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("adapters")
    module = "tests.integration.engines.adapter_program"
    output = run_program(module, [str(root / "models")], os.environ, root, timeout_s=380)
    decoded: dict[str, Any] = msgspec.json.decode(output)
    return decoded


def test_each_adapter_changes_the_answers(found: dict[str, Any]) -> None:
    for index in range(len(PROMPTS)):
        answers = {tuple(found[name][index]) for name in ("base", "a", "b", "c")}
        assert len(answers) == 4


def test_mixed_batches_answer_as_each_model_alone(found: dict[str, Any]) -> None:
    assert found["mixed"] == [found["base"], found["a"], found["b"], found["base"]]
    assert found["three_in_two_slots"] == [found[name] for name in ("a", "b", "c", "base")]


def test_adapter_is_staged_once_for_concurrent_items(found: dict[str, Any]) -> None:
    assert found["staged_at_once"] == 1
    assert found["a_again"] == found["a"]


def test_least_recently_used_adapter_is_evicted_and_reloaded(found: dict[str, Any]) -> None:
    assert (found["loaded"], found["held"]) == ([A, B], {A: 1, B: 1})
    assert (found["loaded_then"], found["held_then"]) == ([B, C], {B: 1, C: 1})
    assert found["reloaded"] == [found["a"], found["base"], found["c"]]
    assert found["known_to_vllm"] == 2
    assert found["held_at_end"] == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("large", "rank 64"), ("broken", "header too large"), ("empty", "its folder")],
)
def test_bad_adapter_fails_its_items_and_the_engine_lives(
    found: dict[str, Any], name: str, reason: str
) -> None:
    answers = found["bad"][name]
    assert len(answers) == len(PROMPTS)
    for answer in answers:
        error = msgspec.json.decode(answer)["error"]
        assert error["code"] == "adapter_refused"
        assert reason in error["message"]
        assert str(Path("/")) not in error["message"]  # no path of the replica
    assert found["base_after"] == found["base"]
    assert set(found["held_after"]).isdisjoint(BAD.values())
    assert msgspec.json.decode(found["bad_call"])["error"]["code"] == "adapter_refused"


def test_answers_show_the_model_as_it_was_asked_for(found: dict[str, Any]) -> None:
    for shown in found["models"].values():
        assert shown == {kind: [ASKED] for kind in ("chat", "events", "text_events", "bulk")}


def test_pinned_vllm_has_the_interface_of_weight_versions(found: dict[str, Any]) -> None:
    """When this fails after an upgrade of vLLM, `weight_version` may check nothing."""
    assert found["spans"] == [{"version": VERSION, "start": 0, "end": 4}]
    assert found["fields"] == [1, 1, 1]


def test_output_of_other_weights_is_no_result(found: dict[str, Any]) -> None:
    code = "weight_version_mismatch"
    assert found["other_weights"] == {"raised": [code] * 3, "events": 0, "reported": [code]}


def test_engine_hash_is_known_after_the_start(found: dict[str, Any]) -> None:
    assert len(bytes.fromhex(found["hash"])) == 32
