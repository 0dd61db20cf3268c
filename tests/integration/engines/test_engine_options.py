"""Goal: each option of a version is refused at push, refused by vLLM before a load, or accepted."""

import os
from importlib.resources import files
from typing import Any

import msgspec
import pytest

from gpu_consumers.engines.settings import CPU_SEQUENCES
from registry.engine_options.engine_options import (
    TABLE_NAME,
    InvalidOptionError,
    check_options,
)
from tests.integration.engines.option_cases import OPTION_CASES, OptionCase, Verdict
from tests.support.vllm_programs import run_program

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, vllm_host: None) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("options")
    module = "tests.integration.engines.option_program"
    output = run_program(module, [str(root / "models")], os.environ, root, timeout_s=280)
    decoded: dict[str, Any] = msgspec.json.decode(output)
    return decoded


def test_the_table_is_that_of_the_installed_vllm(found: dict[str, Any]) -> None:
    """Otherwise write the output of `gpu_consumers.engines.vllm.option_table` to the file."""
    stored = files("registry.engine_options").joinpath(TABLE_NAME).read_bytes()
    assert found["table"] == stored.decode()


@pytest.mark.parametrize("case", OPTION_CASES, ids=lambda case: case.name)
def test_options_have_their_verdict(case: OptionCase, found: dict[str, Any]) -> None:
    if case.verdict is Verdict.PUSH:
        with pytest.raises(InvalidOptionError, match=case.refused_option):
            check_options(case.options)
        return
    check_options(case.options)
    outcome, text = found["cases"][case.name]
    assert outcome == ("accepted" if case.verdict is Verdict.ACCEPTED else "refused"), text
    if case.verdict is Verdict.ENGINE:
        assert text.startswith("vLLM refuses `"), text
        assert f"`{case.refused_option}`" in text.partition(" of the model's version")[0]


def test_engine_hash_depends_on_options_and_not_on_paths(found: dict[str, Any]) -> None:
    plain = found["same"][0][1]
    assert [digest for _, digest in found["same"]] == [plain] * 3
    assert found["cases"]["none"][1] == plain
    assert found["sampling"][1] != plain
    # Options that name what vLLM has chosen by itself change nothing.
    same = {"none", "null", "no-compilation"}
    others = [digest for name, (outcome, digest) in found["cases"].items() if name not in same]
    assert plain not in others
    assert "/" not in found["resolved"]


def test_version_decides_sampling_defaults_template_and_format(found: dict[str, Any]) -> None:
    assert found["sampling_defaults"] == {"temperature": 0.25, "top_k": 7}
    assert found["template"] == "chat_template.jinja"
    assert "safetensors" in found["load_format"]


def test_an_option_within_a_list_is_refused_by_its_name(found: dict[str, Any]) -> None:
    """Should the checks of texts miss one: only what the version names may change."""
    assert "change `trust_remote_code`, `worker_cls`, which it does not name" in found["injected"]


def test_a_model_from_another_folder_is_refused(found: dict[str, Any]) -> None:
    assert "would load `model` from outside of the model" in found["foreign"]


def test_default_of_sequences_is_that_of_vllm(found: dict[str, Any]) -> None:
    assert found["sequences"] == CPU_SEQUENCES
