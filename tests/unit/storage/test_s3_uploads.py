"""Goal: exactly one upload of a key succeeds; a sweep aborts abandoned uploads and no others."""

from datetime import UTC, datetime, timedelta

import boto3.session
import pytest
from botocore import exceptions
from botocore.stub import ANY, Stubber
from pydantic import SecretStr

from core.clock import SystemClock
from core.errors import Disposition, MillraceError
from storage.objects import s3_uploads
from storage.objects.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreFullError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from storage.objects.s3_errors import translate_s3_errors
from storage.objects.s3_object_store import S3ObjectStore
from storage.objects.s3_patience import NO_PATIENCE, UploadPatience
from storage.objects.s3_uploads import S3Upload
from storage.objects.settings import S3Settings

PART_BYTES = 4
PART = {"Bucket": "bucket", "Key": "key", "UploadId": "id", "Body": ANY}


class Scripted:
    """An upload whose server answers as told, in order; any other request fails the test."""

    def __init__(self, patience: UploadPatience = NO_PATIENCE) -> None:
        self.client = boto3.session.Session().client(
            "s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        self.stub = Stubber(self.client)
        self.stub.activate()
        self.upload = S3Upload(
            self.client, "bucket", "key", part_bytes=PART_BYTES, patience=patience
        )

    def begin_parts(self) -> None:
        self.stub.add_response("create_multipart_upload", {"UploadId": "id"})
        self.stub.add_response("upload_part", {"ETag": "1"})
        self.stub.add_response("upload_part", {"ETag": "2"})
        self.upload.write(b"x" * (PART_BYTES + 1))

    def refuse(self, operation: str, code: str, status: int) -> None:
        self.stub.add_client_error(operation, code, http_status_code=status)

    def show_object_of(self, token: str) -> None:
        self.stub.add_response("head_object", {"Metadata": {"upload-token": token}})


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


def test_a_put_with_a_lost_response_succeeds(scripted: Scripted) -> None:
    scripted.refuse("put_object", "PreconditionFailed", 412)
    scripted.show_object_of(scripted.upload._token)
    assert scripted.upload.complete(if_absent=True).size_bytes == 0
    scripted.stub.assert_no_pending_responses()


@pytest.mark.parametrize(("code", "status"), [("NoSuchUpload", 404), ("PreconditionFailed", 412)])
def test_a_completion_with_a_lost_response_succeeds(
    scripted: Scripted, code: str, status: int
) -> None:
    scripted.begin_parts()
    scripted.refuse("complete_multipart_upload", code, status)
    scripted.show_object_of(scripted.upload._token)
    assert scripted.upload.complete(if_absent=True).size_bytes == PART_BYTES + 1
    scripted.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("code", "status"), [("PreconditionFailed", 412), ("ConditionalRequestConflict", 409)]
)
def test_a_visible_object_of_another_upload_means_it_exists(
    scripted: Scripted, code: str, status: int
) -> None:
    scripted.begin_parts()
    scripted.refuse("complete_multipart_upload", code, status)
    scripted.show_object_of("rival")
    scripted.stub.add_response(
        "abort_multipart_upload", {}, {"Bucket": ANY, "Key": "key", "UploadId": "id"}
    )
    with pytest.raises(ObjectExistsError):
        scripted.upload.complete(if_absent=True)
    scripted.stub.assert_no_pending_responses()


def test_a_concurrent_upload_means_retry(scripted: Scripted) -> None:
    scripted.refuse("put_object", "ConditionalRequestConflict", 409)
    scripted.refuse("head_object", "404", 404)
    with pytest.raises(ObjectStoreUnavailableError):
        scripted.upload.complete(if_absent=True)
    scripted.stub.assert_no_pending_responses()


def test_the_parts_of_a_large_object_grow(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_uploads, "_PARTS_OF_ONE_SIZE", 2)
    sizes = [4, 4, 8, 8, 16]
    data = bytes(range(sum(sizes)))
    scripted.stub.add_response("create_multipart_upload", {"UploadId": "id"})
    for number, size in enumerate(sizes, 1):
        body = data[sum(sizes[: number - 1]) :][:size]
        expected = {"Bucket": "bucket", "Key": "key", "UploadId": "id", "PartNumber": number}
        scripted.stub.add_response("upload_part", {"ETag": "e"}, expected | {"Body": body})
    scripted.stub.add_response("complete_multipart_upload", {})
    scripted.upload.write(data)
    assert scripted.upload.complete(if_absent=False).size_bytes == len(data)
    scripted.stub.assert_no_pending_responses()


def test_a_throttled_part_is_sent_again_with_backoff_and_the_upload_goes_on() -> None:
    pauses: list[float] = []

    def pause(pause_s: float) -> bool:
        pauses.append(pause_s)
        return False

    scripted = Scripted(UploadPatience(7, pause, lambda: 1.0))
    scripted.stub.add_response("create_multipart_upload", {"UploadId": "id"})
    for _ in range(6):
        scripted.refuse("upload_part", "SlowDown", 503)
    scripted.stub.add_response("upload_part", {"ETag": "1"}, {"PartNumber": 1} | PART)
    scripted.stub.add_response("upload_part", {"ETag": "2"}, {"PartNumber": 2} | PART)
    scripted.refuse("complete_multipart_upload", "Throttling", 429)
    scripted.stub.add_response("complete_multipart_upload", {})
    scripted.upload.write(b"x" * (PART_BYTES + 1))
    assert scripted.upload.complete(if_absent=True).size_bytes == PART_BYTES + 1
    scripted.stub.assert_no_pending_responses()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 1.0]


@pytest.mark.parametrize(
    ("code", "status", "is_stopping", "requests"),
    [("SlowDown", 503, False, 3), ("SlowDown", 503, True, 1), ("NoSuchUpload", 404, False, 1)],
    ids=["patience-ends", "stop", "upload-is-gone"],
)
def test_patience_with_a_part_ends(
    code: str, status: int, is_stopping: bool, requests: int
) -> None:
    scripted = Scripted(UploadPatience(2, lambda _: is_stopping))
    scripted.stub.add_response("create_multipart_upload", {"UploadId": "id"})
    for _ in range(requests):
        scripted.refuse("upload_part", code, status)
    scripted.stub.add_response("abort_multipart_upload", {})
    with pytest.raises(ObjectStoreUnavailableError), scripted.upload:
        scripted.upload.write(b"x" * (PART_BYTES + 1))
    scripted.stub.assert_no_pending_responses()


def test_a_failed_part_aborts_the_upload(scripted: Scripted) -> None:
    scripted.stub.add_response("create_multipart_upload", {"UploadId": "id"})
    scripted.refuse("upload_part", "SlowDown", 503)
    scripted.refuse("abort_multipart_upload", "InternalError", 500)
    with pytest.raises(ObjectStoreUnavailableError), scripted.upload:
        scripted.upload.write(b"x" * (PART_BYTES + 1))
    scripted.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("404", 404, ObjectNotFoundError),
        ("NoSuchKey", 404, ObjectNotFoundError),
        ("XMinioStorageFull", 507, ObjectStoreFullError),
        ("Whatever", 507, ObjectStoreFullError),
        ("InternalError", 500, ObjectStoreUnavailableError),
        ("Throttling", 429, ObjectStoreUnavailableError),
        ("AccessDenied", 403, ObjectStoreRefusedError),
        ("NoSuchBucket", 404, ObjectStoreRefusedError),
    ],
)
def test_each_s3_error_is_translated(code: str, status: int, expected: type[MillraceError]) -> None:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    with pytest.raises(expected), translate_s3_errors("key"):
        raise exceptions.ClientError(answer, "PutObject")  # type: ignore[arg-type]


def test_a_server_without_response_is_unavailable() -> None:
    with pytest.raises(ObjectStoreUnavailableError) as unavailable, translate_s3_errors("key"):
        raise exceptions.ReadTimeoutError(endpoint_url="http://s3")
    assert unavailable.value.disposition is Disposition.RETRY
    assert unavailable.value.facts == {"key": "key"}


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
