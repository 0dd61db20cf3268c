"""Goal: every engine setting is an option; unknown names are refused."""

from pathlib import Path

import pytest

from cli.stack.up_command import engine_options
from core.errors import SettingsError


def test_options_become_variables() -> None:
    assert engine_options(["vllm_tool_call_parser=hermes", "VLLM_DTYPE=float32"]) == {
        "MILLRACE_ENGINE_VLLM_TOOL_CALL_PARSER": "hermes",
        "MILLRACE_ENGINE_VLLM_DTYPE": "float32",
    }


def test_value_may_contain_equals_signs() -> None:
    assert engine_options(["upstream_api_key=a=b"]) == {"MILLRACE_ENGINE_UPSTREAM_API_KEY": "a=b"}


def test_path_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = engine_options(["vllm_chat_template=chat.jinja"])
    assert options == {"MILLRACE_ENGINE_VLLM_CHAT_TEMPLATE": str(tmp_path / "chat.jinja")}


@pytest.mark.parametrize("text", ["tool_parser=hermes", "vllm_dtype", "", "model_name=m", "=x"])
def test_unknown_option_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="vllm_tool_call_parser"):
        engine_options([text])
