"""Goal: contradicting engine settings are rejected, and vLLM gets the configured arguments."""

from datetime import date
from pathlib import Path

import pytest

from core.errors import SettingsError
from gpu_consumers.engines.open_engine import open_engine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.simulated.settings_hash import simulated_engine_hash
from gpu_consumers.engines.vllm.engine_arguments import vllm_arguments
from gpu_consumers.engines.vllm.vllm_engine import vllm_environment

VLLM = {"KIND": "vllm", "MODEL_NAME": "m"}
SIMULATED = {"KIND": "simulated", "MODEL_NAME": "m"}
VERSION = {"MODEL_VERSION": "a" * 64, "TRUSTED_KEYS": "/keys.pem", "WEIGHT_CACHE": "/cache"}
HTTP = {"KIND": "openai_http", "MODEL_NAME": "m", "UPSTREAM": "http://host:8000/v1"}


def settings(**env: str) -> EngineSettings:
    return EngineSettings.from_env({f"MILLRACE_ENGINE_{name}": env[name] for name in env})


def model_folder(folder: Path, config: str = '{"architectures":["LlamaForCausalLM"]}') -> Path:
    (folder / "config.json").write_text(config)
    return folder


@pytest.mark.parametrize(
    ("env", "mistake"),
    [
        ({"MODEL_NAME": "m"}, "KIND"),
        ({"KIND": "simulated"}, "MODEL_NAME"),
        ({"KIND": "magic", "MODEL_NAME": "m"}, "KIND"),
        (VLLM, "vllm needs model_version or model_path"),
        (VLLM | {"MODEL_PATH": "/m"} | VERSION, "and not both"),
        (VLLM | {"MODEL_VERSION": "a" * 64, "WEIGHT_CACHE": "/c"}, "model_version needs trusted_"),
        (VLLM | {"MODEL_VERSION": "a" * 64, "TRUSTED_KEYS": "/k"}, "model_version needs weight_"),
        (VLLM | VERSION | {"MODEL_VERSION": "A" * 64}, "MODEL_VERSION"),
        (VLLM | VERSION | {"MODEL_VERSION": "a" * 63}, "MODEL_VERSION"),
        (VLLM | VERSION | {"WEIGHT_CACHE_GIB_MAX": "0"}, "WEIGHT_CACHE_GIB_MAX"),
        (
            VLLM | VERSION | {"UNVERIFIED_UNTIL": "2026-01-01"},
            "unverified_until belongs to model_p",
        ),
        (VLLM | {"MODEL_PATH": "/m", "UNVERIFIED_UNTIL": "soon"}, "UNVERIFIED_UNTIL"),
        (
            VLLM | {"MODEL_PATH": "/m", "TRUSTED_KEYS": "/k"},
            "trusted_keys belongs to model_version",
        ),
        (SIMULATED | VERSION, "trusted_keys belongs to vllm"),
        ({"KIND": "openai_http", "MODEL_NAME": "m"}, "openai_http needs upstream"),
        (HTTP | {"UPSTREAM": "host:8000"}, "UPSTREAM"),
        (SIMULATED | {"CONCURRENCY": "0"}, "CONCURRENCY"),
        (SIMULATED | {"UPSTREAM": "http://host"}, "upstream belongs to openai_http"),
        (SIMULATED | {"MODEL_PATH": "/model"}, "model_path belongs to vllm"),
        (HTTP | {"SIMULATED_LATENCY_MS": "5"}, "simulated_latency_ms belongs to simulated"),
        (HTTP | {"VLLM_DTYPE": "float32"}, "vllm_dtype belongs to vllm"),
        (HTTP | {"VLLM_ALLOWED_MEDIA_DOMAINS": "a.b"}, "vllm_allowed_media_domains belongs to"),
        (HTTP | {"VLLM_ALLOWED_MEDIA_DOMAINS": ""}, "VLLM_ALLOWED_MEDIA_DOMAINS"),
        (HTTP | {"VLLM_ALLOWED_MEDIA_DOMAINS": "a.b,--port"}, "VLLM_ALLOWED_MEDIA_DOMAINS"),
        (HTTP | {"VLLM_BODY_SEQUENCES_MAX": "5"}, "vllm_body_sequences_max belongs to vllm"),
        (SIMULATED | {"LATENCY": "5"}, "LATENCY"),
        (SIMULATED | {"CONCURRENCY": "4", "INTERACTIVE_HEADROOM": "4"}, "less than concurrency"),
        (SIMULATED | {"SIMULATED_STEP_SEQUENCE_MS": "1"}, "need simulated_step_ms"),
        (
            SIMULATED | {"SIMULATED_STEP_MS": "1", "SIMULATED_LATENCY_MS": "5"},
            "simulated_step_ms excludes",
        ),
        (HTTP | {"SIMULATED_TOKEN_MS": "5"}, "simulated_token_ms belongs to simulated"),
        (
            HTTP | {"SIMULATED_FAULTS": '[{"contains":"a","fault":"crash"}]'},
            "simulated_faults belongs to simulated",
        ),
    ],
)
def test_contradicting_settings_are_rejected(env: dict[str, str], mistake: str) -> None:
    with pytest.raises(SettingsError, match=mistake):
        settings(**env)


def test_vllm_loads_a_version_or_a_folder() -> None:
    version = settings(**VLLM, **VERSION, WEIGHT_CACHE_GIB_MAX="10")
    assert (version.model_version, version.weight_cache_gib_max) == ("a" * 64, 10)
    folder = settings(**VLLM, MODEL_PATH="/model", UNVERIFIED_UNTIL="2026-12-31")
    assert folder.unverified_until == date(2026, 12, 31)


def test_api_key_is_masked() -> None:
    assert "hunter2" not in repr(settings(**HTTP, UPSTREAM_API_KEY="hunter2"))


def test_default_concurrency_exceeds_one_vllm_step_and_headroom_is_its_square_root() -> None:
    vllm = VLLM | {"MODEL_PATH": "/model"}
    assert settings(**vllm, VLLM_MAX_NUM_SEQS="64").items_at_once == 80
    assert settings(**vllm, CONCURRENCY="7").items_at_once == 7
    assert (settings(**SIMULATED).items_at_once, settings(**SIMULATED).headroom) == (64, 8)
    assert settings(**SIMULATED, INTERACTIVE_HEADROOM="0").headroom == 0
    assert settings(**SIMULATED, CONCURRENCY="1").headroom == 0


@pytest.mark.parametrize("env", [SIMULATED, HTTP], ids=lambda env: env["KIND"])
def test_open_engine_loads_nothing(env: dict[str, str]) -> None:
    assert open_engine(settings(**env, CONCURRENCY="3")).concurrency == 3


def test_vllm_arguments_name_the_runner_of_the_model(tmp_path: Path) -> None:
    env = VLLM | {"MODEL_PATH": str(model_folder(tmp_path))}
    assert "--runner=generate" in vllm_arguments(settings(**env))
    assert "--runner=pooling" in vllm_arguments(settings(**env, VLLM_RUNNER="pooling"))
    assert "--max-model-len=512" in vllm_arguments(settings(**env, VLLM_MAX_MODEL_LEN="512"))
    assert vllm_environment(settings(**env, VLLM_KV_CACHE_GIB="4"))["VLLM_CPU_KVCACHE_SPACE"] == "4"


@pytest.mark.parametrize(("path", "configures"), [(None, "0"), ("/logs.json", "1")])
def test_vllm_keeps_logging_that_an_operator_configures(
    path: str | None, configures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_LOGGING_CONFIG_PATH", raising=False)
    if path is not None:
        monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", path)
    env = VLLM | {"MODEL_PATH": str(model_folder(tmp_path))}
    assert vllm_environment(settings(**env))["VLLM_CONFIGURE_LOGGING"] == configures


@pytest.mark.parametrize(("temporary", "folder"), [("/t" * 35, "/t" * 35), ("/t" * 36, "/tmp")])
def test_vllm_socket_paths_are_short_enough(
    temporary: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", temporary)
    env = VLLM | {"MODEL_PATH": str(model_folder(tmp_path))}
    assert vllm_environment(settings(**env))["VLLM_RPC_BASE_PATH"] == folder


def test_vllm_arguments_name_tool_parser_and_chat_template(tmp_path: Path) -> None:
    vllm = VLLM | {"MODEL_PATH": str(model_folder(tmp_path))}
    template = tmp_path / "chat.jinja"
    given = settings(**vllm, VLLM_TOOL_CALL_PARSER="hermes", VLLM_CHAT_TEMPLATE=str(template))
    with pytest.raises(SettingsError, match="vllm_chat_template"):
        vllm_arguments(given)
    template.write_text("{{ messages }}")
    arguments = vllm_arguments(given)
    assert "--enable-auto-tool-choice" in arguments
    assert "--tool-call-parser=hermes" in arguments
    assert f"--chat-template={template}" in arguments


@pytest.mark.parametrize("content", [None, "", "[]"])
def test_folder_without_model_is_rejected(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        model_folder(tmp_path, content)
    with pytest.raises(SettingsError, match=r"config\.json"):
        vllm_arguments(settings(**VLLM, MODEL_PATH=str(tmp_path)))
    with pytest.raises(SettingsError, match="not a folder"):
        vllm_arguments(settings(**VLLM, MODEL_PATH=str(tmp_path / "none")))


def test_vllm_tokenizes_prompts_of_several_calls_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    env = VLLM | {"MODEL_PATH": str(tmp_path)}
    assert "--renderer-num-workers=4" in vllm_arguments(settings(**env))
    # vLLM does not start a multimodal pooling model with it.
    pooling = vllm_arguments(settings(**env, VLLM_RUNNER="pooling"))
    assert not any(argument.startswith("--renderer-num-workers") for argument in pooling)


def test_the_simulated_engine_has_a_version_and_a_hash_of_its_settings() -> None:
    settings = [
        EngineSettings(
            kind="simulated", model_name="m", model_version="ab" * 32, simulated_latency_ms=latency
        )
        for latency in (0.0, 0.0, 5.0)
    ]
    hashes = [simulated_engine_hash(one) for one in settings]
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(hashes[0]) == 64
    with pytest.raises(ValueError, match="model_version"):
        EngineSettings(kind="simulated", model_name="m", model_version="ab")
    with pytest.raises(ValueError, match="model_version belongs to vllm and simulated"):
        EngineSettings(
            kind="openai_http", model_name="m", model_version="ab" * 32, upstream="http://u"
        )
