"""Goal: a version names one set of files and options, and nothing that runs code is part of it."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.engine_options.engine_options import InvalidOptionError
from registry.engine_options.sampling_defaults import SAMPLING_DEFAULTS
from registry.manifests import manifest as manifests
from registry.manifests.manifest import (
    InvalidManifestError,
    Manifest,
    ManifestFile,
    changed_fields,
    decode_manifest,
    encode_manifest,
    path_refusal,
    version_of,
)
from registry.manifests.model_folder import hash_file, scan_folder

DIGEST = "ab" * 32
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(-(2**53), 2**53) if kind is int else st.floats(0, 2)
        for name, kind in SAMPLING_DEFAULTS.items()
    },
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel_size": st.integers(1, 8),
        "enable_prefix_caching": st.none() | st.booleans(),
        "dtype": st.sampled_from(["auto", "bfloat16"]),
        "cpu_offload_gb": st.floats(0, 64),
        "cudagraph_capture_sizes": st.lists(st.integers(1, 512), max_size=4),
    },
)
PATHS = st.lists(
    st.text("abcdef", min_size=1).map(lambda name: f"{name}.json"), min_size=1, unique=True
)


def file(path: str = "config.json", size: int = 1, digest: str = DIGEST) -> ManifestFile:
    return ManifestFile(path, size, digest)


@given(PATHS, OPTIONS, SAMPLING)
def test_a_manifest_is_read_back_from_its_bytes(
    paths: list[str], options: dict[str, Any], sampling: dict[str, Any]
) -> None:
    found = Manifest(
        tuple(file(path) for path in sorted(paths)),
        base=DIGEST,
        source="hf://org/name@1",
        engine_options=options,
        sampling=sampling,
    )
    data = encode_manifest(found)
    assert decode_manifest(data) == found
    assert encode_manifest(decode_manifest(data)) == data


def test_the_order_of_options_does_not_change_the_version() -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 2}
    one = {"dtype": "auto", "speculative_config": speculation}
    other = {"speculative_config": dict(reversed(speculation.items())), "dtype": "auto"}
    versions = {
        version_of(encode_manifest(Manifest((file(),), engine_options=options)))
        for options in (one, other)
    }
    assert len(versions) == 1


@pytest.mark.parametrize(
    "other",
    [
        Manifest((file(digest="cd" * 32),)),
        Manifest((file(), file("x.json"))),
        Manifest((file(),), engine_options={"dtype": "float16"}),
        Manifest((file(),), sampling={"temperature": 0}),
        Manifest((file(),), base=DIGEST),
        Manifest((file(),), safety_policy="strict"),
    ],
)
def test_whatever_changes_answers_changes_the_version(other: Manifest) -> None:
    found = Manifest((file(),))
    assert version_of(encode_manifest(found)) != version_of(encode_manifest(other))
    assert len(changed_fields(found, other)) == 1
    assert changed_fields(other, other) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"files":[],"schema":1}',
        b'{"files":[{"path":"a","sha256":"%b","size":1}],"schema":2}' % DIGEST.encode(),
        b'{"files":[{"path":"a","sha256":"%b","size":-1}],"schema":1}' % DIGEST.encode(),
        b'{"files":[{"path":"a","sha256":"%b","size":1}],"schema":1}' % b"AB" * 32,
        b'{"files":[{"path":"a","sha256":"%b","size":1}],"more":1,"schema":1}' % DIGEST.encode(),
        b'{"files": [{"path":"a","sha256":"%b","size":1}],"schema":1}' % DIGEST.encode(),
        b'{"schema":1,"files":[{"path":"a","sha256":"%b","size":1}]}' % DIGEST.encode(),
    ],
)
def test_bytes_that_are_no_canonical_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidManifestError):
        decode_manifest(data)


@pytest.mark.parametrize(
    "files",
    [
        (file("b.txt"), file("a.txt")),
        (file("a.txt"), file("a.txt")),
        (file("A.txt"), file("a.txt")),
        (file("a.txt"), file("a.txt/b.txt")),
        tuple(file(f"{number:05}.txt") for number in range(manifests.FILES_MAX + 1)),
    ],
    ids=["unsorted", "twice", "differ in case", "file and folder", "too many"],
)
def test_files_that_no_folder_can_hold_are_refused(files: tuple[ManifestFile, ...]) -> None:
    with pytest.raises(InvalidManifestError):
        encode_manifest(Manifest(files))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../x",
        "a//x",
        "./x",
        "a\\x",
        "a\nx",
        "a\x00x",
        ".git/config",
        "x" * 513,
        "model.bin",
        "Model.PT",
        "a/data.pkl",
        "x.so.1",
        "x.pth.tar",
        "a.pkl.gz",
        "x.keras",
        "weights",
        "cafe\u0301.json",
        "modeling.py",
    ],
)
def test_a_path_that_leaves_the_folder_hides_or_runs_code_is_refused(path: str) -> None:
    assert path_refusal(path, allows_code=False)


def test_code_is_part_of_a_model_only_where_an_operator_allowed_it() -> None:
    assert path_refusal("modeling.py", allows_code=True) is None
    assert path_refusal("data.pkl", allows_code=True)
    assert path_refusal("a/model-00001-of-00002.safetensors", allows_code=False) is None


def test_a_folder_is_scanned_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".git").mkdir(parents=True)
    for path in ("b.json", "sub/a.json", "sub/.git/x", ".hidden"):
        (tmp_path / path).write_text(path)
    found = scan_folder(tmp_path)
    assert [one.path for one in found] == ["b.json", "sub/a.json"]
    assert found[0].size == 6
    assert version_of(b"b.json") == found[0].sha256


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "pickle"])
def test_a_folder_with_what_no_model_needs_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    match kind:
        case "link":
            (tmp_path / "link.json").symlink_to(tmp_path / "config.json")
        case "folder link":
            (tmp_path / "sub").symlink_to(tmp_path)
        case "pipe":
            os.mkfifo(tmp_path / "pipe.json")
        case _:
            (tmp_path / "weights.pt").write_text("")
    with pytest.raises(InvalidManifestError, match=r"link|pipe|pt"):
        scan_folder(tmp_path)


def test_a_file_that_becomes_a_link_or_pipe_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """What is listed may be replaced before it is opened."""
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "sub" / "pipe")
    (tmp_path / "sub" / "link").symlink_to("/etc/passwd")
    (tmp_path / "other").symlink_to(tmp_path / "sub")
    with pytest.raises(InvalidManifestError):
        hash_file(tmp_path, "sub/pipe")
    for path in ("sub/link", "other/pipe", "sub"):
        with pytest.raises((OSError, InvalidManifestError)):
            hash_file(tmp_path, path)


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest((file(),), engine_options={"trust_remote_code": True}),
        Manifest((file(),), engine_options={"unknown": 1}),
        Manifest((file(size=10**30),)),
        Manifest((file(),), source="\ud800"),
        Manifest((file(),), sampling={"temperature": float("inf")}),
        Manifest((file(),), sampling={"temperature": {"a": 1}}),
        Manifest((file(),), sampling={"temperature": True}),
        Manifest((file(),), sampling={"max_tokens": 5}),
        Manifest((file(),), sampling={"top_k": 0.5}),
        Manifest((file(),), sampling={"top_k": None}),
    ],
)
def test_a_manifest_that_no_engine_may_run_is_refused(manifest: Manifest) -> None:
    with pytest.raises((InvalidManifestError, InvalidOptionError)):
        encode_manifest(manifest)


def test_unknown_fields_of_a_file_are_refused() -> None:
    data = encode_manifest(Manifest((file(),)))
    wrong = msgspec.json.decode(data)
    wrong["files"][0]["mode"] = "x"
    with pytest.raises(InvalidManifestError):
        decode_manifest(msgspec.json.encode(wrong, order="sorted"))
