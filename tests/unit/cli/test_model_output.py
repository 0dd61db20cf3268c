"""Goal: what operators read of models is complete, and says what is absent."""

import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.admin.model_key_commands import key_rows
from cli.admin.model_name_commands import alias_rows, history_rows
from cli.admin.model_plan_command import parse_options
from cli.admin.model_show_commands import diff_rows, version_rows
from cli.admin.model_verify_command import part_rows
from cli.exits import ExitCode
from cli.main import app
from core.errors import SettingsError
from registry.store.version_check import CheckedPart

VERSION = {
    "id": "m@abc",
    "names": ["m", "prod"],
    "pool": "p",
    "engine": "vllm",
    "endpoints": ["/v1/completions", "/v1/embeddings"],
    "verification": "signed",
    "base_version": None,
    "tenant_id": None,
    "created_at": 0,
    "retired_at": None,
    "manifest": {
        "file_count": 2,
        "total_bytes": 30,
        "source": "hf://org/m@c0ffee",
        "engine_options": {"max_model_len": 512, "dtype": "auto"},
        "sampling": {"top_p": 0.9},
        "allows_code": True,
    },
    "signatures": [
        {"key": "k1", "key_name": "release", "key_revoked_at": None},
        {"key": "k2", "key_name": "old", "key_revoked_at": 1},
    ],
}


def test_a_signed_version_is_shown_whole() -> None:
    assert version_rows(VERSION) == [
        ("id", "m@abc"),
        ("names", "m, prod"),
        ("pool", "p"),
        ("engine", "vllm"),
        ("endpoints", "/v1/completions,/v1/embeddings"),
        ("verification", "signed"),
        ("registered", "1970-01-01T00:00:00+00:00"),
        ("source", "hf://org/m@c0ffee"),
        ("files", "2, 30 bytes"),
        ("has code", "yes"),
        ("option dtype", '"auto"'),
        ("option max_model_len", "512"),
        ("sampling top_p", "0.9"),
        ("signed by", "release k1"),
        ("signed by", "old k2 (revoked)"),
    ]


def test_a_version_without_a_manifest_shows_no_files() -> None:
    legacy = VERSION | {"manifest": None, "signatures": [], "names": []}
    fields = [field for field, _ in version_rows(legacy)]
    assert fields == ["id", "pool", "engine", "endpoints", "verification", "registered"]


def test_differences_say_what_is_absent() -> None:
    changes = [
        {"field": "files/a", "old": None, "new": "d1"},
        {"field": "engine_options", "old": {"a": 1}, "new": {}},
    ]
    assert diff_rows({"changes": changes}) == [
        ("files/a", "-", "d1"),
        ("engine_options", '{"a": 1}', "{}"),
    ]


def test_aliases_history_keys_and_parts() -> None:
    alias = {"id": "prod", "target": "m", "model_version": None, "tenant_id": None, "revision": 7}
    assert alias_rows([alias]) == [("prod", "m", "-", "", "7")]
    removed = {"since": 0, "revision": 8, "meaning": None}
    assert history_rows([removed]) == [("1970-01-01T00:00:00+00:00", "8", "-")]
    key = {"id": "k", "name": "n", "created_at": 0, "revoked_at": None}
    assert key_rows([key]) == [("k", "n", "1970-01-01T00:00:00+00:00", "")]
    parts = [CheckedPart("file", "a", None), CheckedPart("manifest", "v", "is not stored")]
    assert part_rows(parts) == [("file", "a", "none"), ("manifest", "v", "is not stored")]


@pytest.mark.parametrize(("gib", "exit_code"), [("8", ExitCode.OK), ("0.5", ExitCode.FAILED)])
def test_a_plan_says_whether_a_model_fits(tmp_path: Path, gib: str, exit_code: ExitCode) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 2048,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensor = {"dtype": "BF16", "shape": [1000, 64], "data_offsets": [0, 128_000]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    weights = struct.pack("<Q", len(header)) + header + bytes(128_000)
    (tmp_path / "model.safetensors").write_bytes(weights)
    arguments = ["models", "plan", str(tmp_path), "--device-gib", gib]
    result = CliRunner().invoke(app, [*arguments, "--option", "max_model_len=1024", "-o", "json"])

    assert result.exit_code == exit_code, result.stderr
    plan = json.loads(result.stdout)
    assert (plan["fits"], plan["max_model_len"]) == (exit_code == ExitCode.OK, 1024)


def test_options_are_json_or_text() -> None:
    given = ["max_model_len=4096", "dtype=auto", "a=[1]", "b=x=y"]
    assert parse_options(given) == {"max_model_len": 4096, "dtype": "auto", "a": [1], "b": "x=y"}
    for wrong in ("max_model_len", "=1"):
        with pytest.raises(SettingsError):
            parse_options([wrong])
