"""Goal: a sweep aborts abandoned uploads and never one with recent parts."""

from datetime import UTC, datetime, timedelta

import pytest
from botocore.stub import Stubber
from pydantic import SecretStr

from core.clock import SystemClock
from storage.objects.s3_object_store import S3ObjectStore
from storage.objects.settings import S3Settings

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
UPLOAD = {"Bucket": "bucket", "Key": "files/a", "UploadId": "id"}


@pytest.fixture
def store() -> S3ObjectStore:
    keys = SecretStr("a")
    settings = S3Settings(bucket="bucket", access_key=keys, secret_key=keys)
    return S3ObjectStore(settings, clock=SystemClock())


@pytest.fixture
def server(store: S3ObjectStore) -> Stubber:
    """A server that lists one upload, begun two days ago; tests add what follows."""
    stub = Stubber(store._client)
    stub.activate()
    begun = {"Key": "files/a", "UploadId": "id", "Initiated": NOW - 2 * DAY}
    stub.add_response("list_multipart_uploads", {"Uploads": [begun]}, {"Bucket": "bucket"})
    return stub


def parts(*ages: timedelta) -> dict[str, object]:
    return {"Parts": [{"PartNumber": n, "LastModified": NOW - age} for n, age in enumerate(ages)]}


def test_an_upload_with_recent_parts_is_kept(store: S3ObjectStore, server: Stubber) -> None:
    server.add_response("list_parts", parts(2 * DAY, DAY / 2), UPLOAD)
    assert store.sweep_temporary(DAY.total_seconds()) == 0
    server.assert_no_pending_responses()


@pytest.mark.parametrize("ages", [(), (2 * DAY, 1.5 * DAY)])
def test_an_upload_without_recent_parts_is_aborted(
    store: S3ObjectStore, server: Stubber, ages: tuple[timedelta, ...]
) -> None:
    server.add_response("list_parts", parts(*ages), UPLOAD)
    server.add_response("abort_multipart_upload", {}, UPLOAD)
    assert store.sweep_temporary(DAY.total_seconds()) == 1
    server.assert_no_pending_responses()


def test_an_upload_that_has_ended_meanwhile_is_kept(store: S3ObjectStore, server: Stubber) -> None:
    server.add_client_error("list_parts", "NoSuchUpload", http_status_code=404)
    assert store.sweep_temporary(DAY.total_seconds()) == 0
    server.assert_no_pending_responses()
