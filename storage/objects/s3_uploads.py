"""Uploads to S3: a single PUT when the object fits one part, multipart otherwise."""

import contextlib
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from storage.objects.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    ObjectTooLargeError,
)
from storage.objects.object_store import Upload
from storage.objects.s3_errors import S3ConflictError, S3UploadNotFoundError, translate_s3_errors
from storage.objects.s3_patience import NO_PATIENCE, UploadPatience

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client
    from types_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CompleteMultipartUploadRequestTypeDef,
        PutObjectRequestTypeDef,
    )

_PART_COUNT_MAX: Final = 10_000  # of one multipart upload, by the protocol
_PARTS_OF_ONE_SIZE: Final = 2_000  # then parts are twice as large: 484 GiB in all at 8 MiB
_PART_BYTES_MAX: Final = 5 * 1024**3  # of the protocol
_TOKEN: Final = "upload-token"  # metadata that identifies the upload of an object


class S3Upload(Upload):
    """An `Upload` that holds one part in memory. The parts of very large objects grow."""

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        key: str,
        *,
        part_bytes: int,
        patience: UploadPatience = NO_PATIENCE,
    ) -> None:
        """`key` is validated. The first full part starts a multipart upload."""
        super().__init__(key)
        self._client = client
        self._bucket = bucket
        self._part_bytes = part_bytes
        self._patience = patience
        self._token = secrets.token_hex(16)
        self._buffer = bytearray()
        self._upload_id: str | None = None
        self._parts: list[CompletedPartTypeDef] = []

    def _store(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            # A full part is sent only when more data follows, so the last part is never empty.
            if len(self._buffer) == self._size_of_next_part:
                self._patience.run(self._send_part)
            taken = rest[: self._size_of_next_part - len(self._buffer)]
            self._buffer += taken
            rest = rest[len(taken) :]

    @property
    def _size_of_next_part(self) -> int:
        doublings = len(self._parts) // _PARTS_OF_ONE_SIZE
        return min(self._part_bytes << doublings, _PART_BYTES_MAX)

    def _publish(self, *, if_absent: bool) -> None:
        try:
            if self._upload_id is None:
                self._patience.run(partial(self._put, if_absent=if_absent))
            else:
                self._patience.run(self._send_part)
                finish = partial(self._finish_parts, self._upload_id, if_absent=if_absent)
                self._patience.run(finish)
        except (ObjectExistsError, S3ConflictError, S3UploadNotFoundError) as refusal:
            # When a response is lost, the client's retry finds the object of its own first try.
            # So check the visible object's token before failing.
            token = self._visible_token()
            if token == self._token:
                return
            if token is not None and if_absent:
                raise ObjectExistsError(key=self.key) from refusal
            raise

    def _discard(self) -> None:
        self._buffer.clear()
        if self._upload_id is not None:
            with contextlib.suppress(ObjectStoreUnavailableError), translate_s3_errors(self.key):
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self.key, UploadId=self._upload_id
                )

    def _put(self, *, if_absent: bool) -> None:
        request: PutObjectRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self.key,
            "Body": bytes(self._buffer),
            "Metadata": {_TOKEN: self._token},
        }
        if if_absent:
            request["IfNoneMatch"] = "*"
        with translate_s3_errors(self.key):
            self._client.put_object(**request)

    def _send_part(self) -> None:
        number = len(self._parts) + 1
        if number > _PART_COUNT_MAX:
            raise ObjectTooLargeError(key=self.key, part_bytes=self._part_bytes)
        with translate_s3_errors(self.key):
            if self._upload_id is None:
                created = self._client.create_multipart_upload(
                    Bucket=self._bucket, Key=self.key, Metadata={_TOKEN: self._token}
                )
                self._upload_id = created["UploadId"]
            part = self._client.upload_part(
                Bucket=self._bucket,
                Key=self.key,
                UploadId=self._upload_id,
                PartNumber=number,
                Body=bytes(self._buffer),
            )
        self._parts.append({"PartNumber": number, "ETag": part["ETag"]})
        self._buffer.clear()

    def _finish_parts(self, upload_id: str, *, if_absent: bool) -> None:
        request: CompleteMultipartUploadRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self.key,
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": self._parts},
        }
        if if_absent:
            request["IfNoneMatch"] = "*"
        with translate_s3_errors(self.key):
            self._client.complete_multipart_upload(**request)

    def _visible_token(self) -> str | None:
        """Return the visible object's token, empty for other writers; None without an object."""
        try:
            with translate_s3_errors(self.key):
                head = self._client.head_object(Bucket=self._bucket, Key=self.key)
        except ObjectNotFoundError:
            return None
        return head["Metadata"].get(_TOKEN, "")
