"""Goal: a model in a bucket arrives as it was listed, whatever its keys are named."""

from pathlib import Path

import pytest

from registry.sources.errors import ModelSourceError
from registry.sources.fetched_model import Fetcher
from registry.sources.source_names import parse_source
from storage.objects.errors import ObjectNotFoundError
from storage.objects.s3_folder_reader import S3FolderReader
from storage.objects.s3_object_store import s3_client
from storage.objects.settings import S3Settings

WEIGHTS = bytes(range(256)) * 5000


class Bucket:
    """A bucket that somebody else wrote to, and a fetcher for it."""

    def __init__(self, settings: S3Settings, downloads: Path) -> None:
        self.name, self.downloads = settings.bucket, downloads
        self.env = {
            "MILLRACE_S3_BUCKET": "the-installation",
            "MILLRACE_S3_ENDPOINT_URL": settings.endpoint_url or "",
            "MILLRACE_S3_ACCESS_KEY": "test",
            "MILLRACE_S3_SECRET_KEY": "test",
        }
        self._client = s3_client(settings)

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def fetch(self, prefix: str = "Models/Tiny") -> tuple[dict[str, bytes], list[str]]:
        fetcher = Fetcher(downloads=self.downloads, env=self.env, pause=lambda _: None)
        with fetcher.fetched(parse_source(f"s3://{self.name}/{prefix}")) as model:
            assert model.source == f"s3://{self.name}/{prefix}"
            files = {
                path.relative_to(model.folder).as_posix(): path.read_bytes()
                for path in model.folder.rglob("*")
                if path.is_file()
            }
            return files, list(model.left_out)


@pytest.fixture
def bucket(s3_settings: S3Settings, tmp_path: Path) -> Bucket:
    bucket = Bucket(s3_settings, tmp_path / "downloads")
    bucket.put("Models/Tiny/config.json", b"{}")
    bucket.put("Models/Tiny/1_Pooling/config.json", b"")
    bucket.put("Models/Tiny/model.safetensors", WEIGHTS)
    bucket.put("Models/Tiny/", b"")  # the marker of a folder
    bucket.put("Models/Tiny/pytorch_model.bin", b"pickle")
    bucket.put("Models/Tiny-2/other.json", b"{}")
    return bucket


def test_the_objects_below_the_prefix_arrive(bucket: Bucket) -> None:
    files, left_out = bucket.fetch()
    assert files == {
        "config.json": b"{}",
        "1_Pooling/config.json": b"",
        "model.safetensors": WEIGHTS,
    }
    assert left_out == ["pytorch_model.bin"]
    assert not [path for path in bucket.downloads.iterdir() if path.is_dir()]


def test_a_listing_is_bounded(bucket: Bucket, s3_settings: S3Settings) -> None:
    reader = S3FolderReader(s3_settings, "Models")
    assert len(reader.list_files(2)) == 3
    assert len(reader.list_files(10)) == 5


def test_keys_that_leave_the_folder_are_refused(bucket: Bucket) -> None:
    bucket.put("Models/Tiny/a/../../evil.json", b"x")
    with pytest.raises(ModelSourceError, match="leaves its folder"):
        bucket.fetch()


def test_an_object_that_changed_since_it_was_listed_is_not_mixed_in(
    bucket: Bucket, s3_settings: S3Settings
) -> None:
    reader = S3FolderReader(s3_settings, "Models/Tiny/")
    listed = next(file for file in reader.list_files(9) if file.path == "model.safetensors")
    with reader.read(listed, offset=len(WEIGHTS) - 3) as blocks:
        assert b"".join(blocks) == WEIGHTS[-3:]
    bucket.put("Models/Tiny/model.safetensors", WEIGHTS[::-1])
    with pytest.raises(ObjectNotFoundError, match="changed"):
        reader.read(listed)


@pytest.mark.parametrize("prefix", ["Models/None", "Models/Tiny-2"])
def test_a_prefix_without_weights_is_refused(prefix: str, bucket: Bucket) -> None:
    with pytest.raises(ModelSourceError, match="has no"):
        bucket.fetch(prefix)
