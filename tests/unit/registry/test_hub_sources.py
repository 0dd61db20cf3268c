"""Goal: a model of the hub arrives complete and as the hub states it, or not at all."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from registry.manifests.manifest import FILES_MAX, InvalidManifestError
from registry.sources.errors import ModelSourceError
from registry.sources.fetched_model import FetchedModel, Fetcher
from registry.sources.file_choice import choose_files
from registry.sources.file_download import TRIES_MAX, RemoteFile
from registry.sources.lowest_rate import LowestRate
from registry.sources.source_names import HubSource, parse_source
from tests.support.model_hub import COMMIT, ModelHub, serve_hub

WEIGHTS = bytes(range(256)) * 40  # kept by LFS
CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'
TOKEN = "hf_" + "a" * 20


@pytest.fixture
def hub() -> Iterator[ModelHub]:
    files = {
        ".gitattributes": b"*.safetensors filter=lfs",
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
        "modeling_tiny.py": b"import os",
        "pytorch_model.bin": b"pickle",
    }
    with serve_hub(ModelHub(files)) as served:
        yield served


class Fetching:
    """Fetches from the hub, and keeps what a fetch found."""

    def __init__(self, hub: ModelHub, downloads: Path) -> None:
        self.env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
        self.downloads = downloads
        self.pauses: list[float] = []

    def fetch(
        self, text: str = "hf://org/tiny", *, rate_min: int | None = None, **options: Any
    ) -> tuple[FetchedModel, dict[str, bytes]]:
        env = dict(self.env)
        if rate_min is not None:
            env["MILLRACE_SOURCES_BYTES_PER_S_MIN"] = str(rate_min)
        fetcher = Fetcher(downloads=self.downloads, env=env, pause=self.pauses.append, **options)
        with fetcher.fetched(parse_source(text)) as model:
            found = model.folder.rglob("*")
            files = {
                path.relative_to(model.folder).as_posix(): path.read_bytes()
                for path in found
                if path.is_file()
            }
            return model, files

    def refusal(self, text: str = "hf://org/tiny", **options: Any) -> str:
        """Return the message of a refused fetch, which is one line and shows no token."""
        with pytest.raises((ModelSourceError, InvalidManifestError)) as refused:
            self.fetch(text, **options)
        message = str(refused.value)
        assert "\n" not in message
        assert TOKEN not in message
        return message


@pytest.fixture
def fetching(hub: ModelHub, tmp_path: Path) -> Fetching:
    return Fetching(hub, tmp_path / "downloads")


def test_the_files_of_the_commit_arrive_and_the_folder_is_removed(
    fetching: Fetching, hub: ModelHub
) -> None:
    model, files = fetching.fetch()

    assert files == {"config.json": CONFIG, "model.safetensors": WEIGHTS}
    assert model.source == f"hf://org/tiny@{COMMIT}"
    assert list(model.left_out) == [".gitattributes", "modeling_tiny.py", "pytorch_model.bin"]
    assert not model.folder.exists()
    asked = [request.path for request in hub.requests]
    assert not [path for path in asked if path.endswith((".bin", ".py"))]
    assert all(f"/resolve/{COMMIT}/" in path for path in asked if "/resolve/" in path)


def test_code_is_fetched_only_if_allowed(fetching: Fetching) -> None:
    _, files = fetching.fetch(allows_code=True)
    assert files["modeling_tiny.py"] == b"import os"


def test_the_token_goes_to_the_hub_and_not_to_another_host(
    fetching: Fetching, hub: ModelHub
) -> None:
    fetching.fetch()
    seen = {(request.host, request.authorization) for request in hub.requests}
    assert seen == {("hub", f"Bearer {TOKEN}"), ("files", None)}


def test_a_broken_connection_is_resumed_where_it_broke(fetching: Fetching, hub: ModelHub) -> None:
    hub.breaks["model.safetensors"] = [1000, 500]

    _, files = fetching.fetch()

    assert files["model.safetensors"] == WEIGHTS
    ranges = [request.range for request in hub.requests if request.host == "files"]
    assert ranges == [None, "bytes=1000-", "bytes=1500-"]


def test_a_later_process_resumes_what_an_earlier_one_left(
    fetching: Fetching, hub: ModelHub
) -> None:
    hub.breaks["model.safetensors"] = [1000] + [0] * TRIES_MAX
    assert "cannot be downloaded" in fetching.refusal()
    hub.requests.clear()

    _, files = fetching.fetch()

    assert files["model.safetensors"] == WEIGHTS
    assert [r.range for r in hub.requests if r.host == "files"] == ["bytes=1000-"]


def test_a_host_without_ranges_sends_the_file_again(fetching: Fetching, hub: ModelHub) -> None:
    hub.breaks["model.safetensors"], hub.ignores_ranges = [1000], True
    assert fetching.fetch()[1]["model.safetensors"] == WEIGHTS


def test_a_busy_host_is_asked_again_later(fetching: Fetching, hub: ModelHub) -> None:
    hub.statuses = [503, 429]
    assert fetching.fetch()[1]["model.safetensors"] == WEIGHTS
    assert fetching.pauses == [2.0, 4.0]


def test_a_wrong_beginning_of_an_earlier_process_is_fetched_again(
    fetching: Fetching, hub: ModelHub
) -> None:
    hub.breaks["model.safetensors"] = [1000] + [0] * TRIES_MAX
    fetching.refusal()
    partials = fetching.downloads.glob("*/.partial/*")
    broken = next(partial for partial in partials if partial.stat().st_size == 1000)
    broken.write_bytes(b"x" * 1000)

    assert fetching.fetch()[1]["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize("path", ["config.json", "model.safetensors"])
def test_content_with_another_digest_is_refused(
    path: str, fetching: Fetching, hub: ModelHub
) -> None:
    hub.stated[path] = hub.sibling(path, hub.files[path])
    hub.files[path] = hub.files[path][:-1] + b"!"
    assert fetching.refusal() == f"{path!r} has not the digest that its source states."


@pytest.mark.parametrize("path", ["config.json", "model.safetensors"])
def test_a_file_larger_than_told_is_cut_off_and_refused(
    path: str, fetching: Fetching, hub: ModelHub
) -> None:
    hub.stated[path] = hub.sibling(path, hub.files[path])
    hub.files[path] += b"more" * 10_000
    assert "more than the" in fetching.refusal()
    assert all(p.stat().st_size <= len(WEIGHTS) for p in fetching.downloads.rglob("*"))


@pytest.mark.parametrize(
    "name", ["../evil.json", "/etc/evil.json", "a/../../evil.json", "a\\evil.json", "a\nb.json"]
)
def test_a_name_outside_the_folder_is_refused(name: str, fetching: Fetching, hub: ModelHub) -> None:
    hub.extra_siblings = [{"rfilename": name, "size": 1, "blobId": "0" * 40}]
    assert "leaves its folder" in fetching.refusal()
    assert not [request for request in hub.requests if "/resolve/" in request.path]


def test_names_that_are_one_file_without_case_are_refused(
    fetching: Fetching, hub: ModelHub
) -> None:
    hub.extra_siblings = [{"rfilename": "Config.json", "size": 1, "blobId": "0" * 40}]
    assert "name one file" in fetching.refusal()


def test_too_many_files_are_refused(fetching: Fetching, hub: ModelHub) -> None:
    hub.extra_siblings = [
        {"rfilename": f"{number}.json", "size": 1, "blobId": "0" * 40}
        for number in range(FILES_MAX)
    ]
    assert f"more than {FILES_MAX} files" in fetching.refusal()


def test_a_list_of_files_without_end_is_refused(
    fetching: Fetching, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.sources.hub_repository.LISTING_BYTES_MAX", 2000)
    fetching.fetch()
    hub.extra_siblings = [{"rfilename": "a" * 2000}]
    assert "more than 2000 bytes" in fetching.refusal()


def test_a_source_that_is_too_slow_is_left_and_resumed_later(
    fetching: Fetching, hub: ModelHub
) -> None:
    hub.files["model.safetensors"] = bytes(200_000)  # several blocks, and one each minute
    minutes = count()

    def clock() -> float:
        return 60.0 * next(minutes)

    assert "less than 1000000 bytes/s for a minute" in fetching.refusal(
        clock=clock, rate_min=1_000_000
    )
    assert fetching.fetch(clock=clock, rate_min=0)[1]["model.safetensors"] == bytes(200_000)


def test_only_time_of_reading_counts_against_the_lowest_rate() -> None:
    now = 0.0
    rate = LowestRate(100, lambda: now)
    for _ in range(6):
        now += 3600  # a pause after a broken transfer
        rate.resume()
        now += 30
        rate.advance(3001)
    rate.resume()
    now += 59
    rate.advance(10)
    now += 1
    with pytest.raises(ModelSourceError, match="less than 100 bytes/s"):
        rate.advance(10)


class CountedPath(str):
    """The path of a listed file, which counts how often it is looked at."""

    looks = 0

    def startswith(self, *arguments: Any) -> bool:
        type(self).looks += 1
        return super().startswith(*arguments)

    def endswith(self, *arguments: Any) -> bool:
        type(self).looks += 1
        return super().endswith(*arguments)


def test_each_name_of_a_listing_is_looked_at_a_few_times() -> None:
    files = 500
    listed = [
        RemoteFile(CountedPath(f"consolidated{number}.safetensors"), 1) for number in range(files)
    ]
    CountedPath.looks = 0
    kept, left_out = choose_files("s", listed, allows_code=False)
    assert (len(kept), left_out) == (files, [])
    assert CountedPath.looks < 20 * files


def test_more_bytes_than_the_disk_has_are_refused_before_the_first(
    fetching: Fetching, hub: ModelHub
) -> None:
    stated = hub.sibling("model.safetensors", WEIGHTS)
    hub.stated["model.safetensors"] = stated | {"lfs": stated["lfs"] | {"size": 2**41}}
    assert "more bytes in" in fetching.refusal()
    assert not [request for request in hub.requests if "/resolve/" in request.path]


@pytest.mark.parametrize(
    "sibling",
    [
        {"rfilename": "a.json"},
        {"rfilename": "a.json", "size": 1},
        {"rfilename": "a.json", "size": "x"},
    ],
)
def test_a_file_without_size_or_digest_is_refused(
    sibling: dict[str, Any], fetching: Fetching, hub: ModelHub
) -> None:
    hub.extra_siblings = [sibling]
    assert "cannot be read" in fetching.refusal()


def test_weights_that_run_code_when_read_are_refused(fetching: Fetching, hub: ModelHub) -> None:
    del hub.files["model.safetensors"]
    assert (
        "no weights in safetensors, only others such as 'pytorch_model.bin'" in fetching.refusal()
    )


def test_a_second_form_of_the_weights_is_left_out(fetching: Fetching, hub: ModelHub) -> None:
    hub.files["consolidated.safetensors"] = WEIGHTS
    model, _ = fetching.fetch()
    assert "consolidated.safetensors" in model.left_out


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("GatedRepo", 403, "is gated"),
        ("RepoNotFound", 401, "no such repository"),
        ("Other", 500, "answers with status 500"),
    ],
)
def test_a_refusal_of_the_hub_is_one_line(
    code: str, status: int, message: str, fetching: Fetching, hub: ModelHub
) -> None:
    hub.error_code, hub.error_status = code, status
    assert message in fetching.refusal()


def test_a_snapshot_of_the_hubs_cache_is_refused_with_what_to_do(
    fetching: Fetching, tmp_path: Path
) -> None:
    cache = tmp_path / "models--org--tiny"
    (cache / "blobs").mkdir(parents=True)
    (cache / "blobs" / "b10b").write_bytes(CONFIG)
    snapshot = cache / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/b10b")

    message = fetching.refusal(str(snapshot))
    assert f"hf://org/tiny@{COMMIT}" in message
    assert f"hf download org/tiny --revision {COMMIT} --local-dir" in message

    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_bytes(CONFIG)  # as on a file system without links
    assert fetching.fetch(str(snapshot))[1] == {"config.json": CONFIG}


def test_an_unknown_revision_is_one_line(fetching: Fetching) -> None:
    assert "no such revision" in fetching.refusal("hf://org/tiny@v9")


def test_an_unknown_repository_is_one_line(fetching: Fetching) -> None:
    assert "no such repository" in fetching.refusal("hf://org/other")


def test_a_hub_that_does_not_answer_is_one_line(fetching: Fetching) -> None:
    fetching.env["HF_ENDPOINT"] = "http://user:secret@127.0.0.1:9"
    message = fetching.refusal()
    assert "the hub 127.0.0.1 does not answer" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf://org/name", HubSource("org/name")),
        ("hf://org/name@v1.0", HubSource("org/name", "v1.0")),
        ("org/name@refs/pr/1", HubSource("org/name", "refs/pr/1")),
    ],
)
def test_a_repository_is_named_with_or_without_revision(text: str, source: HubSource) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "hf://org",
        "hf://org/a/b",
        "hf://../a",
        "hf://a/..",
        "hf://a/b@",
        "hf://a/b@../c",
        "hf://a/b@-x",
        "s3://b",
        "s3://UP/x",
        "s3:///x",
        "http://x/y",
        "gs://b/x",
    ],
)
def test_what_names_no_source_is_refused(text: str) -> None:
    with pytest.raises(ModelSourceError):
        parse_source(text)
