"""Stores objects in an S3 bucket; every request has a timeout and a bounded number of tries."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3.session
from botocore.config import Config

from core.clock import Clock
from storage.objects.object_store import ObjectBlocks, ObjectInfo, checked_key, checked_prefix
from storage.objects.s3_errors import S3RangeError, S3UploadNotFoundError, translate_s3_errors
from storage.objects.s3_patience import NO_PATIENCE, UploadPatience
from storage.objects.s3_uploads import S3Upload
from storage.objects.settings import S3Settings

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client


class S3ObjectStore:
    """An `ObjectStore` in a bucket."""

    def __init__(
        self, settings: S3Settings, *, clock: Clock, patience: UploadPatience = NO_PATIENCE
    ) -> None:
        self._client = s3_client(settings)
        self._bucket = settings.bucket
        self._part_bytes = settings.part_bytes
        self._clock = clock
        self._patience = patience

    def begin_upload(self, key: str) -> S3Upload:
        """See `ObjectStore`."""
        return S3Upload(
            self._client,
            self._bucket,
            checked_key(key),
            part_bytes=self._part_bytes,
            patience=self._patience,
        )

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        """See `ObjectStore`."""
        if length == 0:
            self.size(key)  # S3 has no empty ranges, but a missing object must raise
            return _no_blocks()
        last = "" if length is None else offset + length - 1
        try:
            with translate_s3_errors(key):
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=checked_key(key), Range=f"bytes={offset}-{last}"
                )
        except S3RangeError:
            return _no_blocks()
        body = answer["Body"]

        def read(size: int) -> bytes:
            with translate_s3_errors(key):
                return body.read(size)

        return ObjectBlocks(read, body.close, length)

    def size(self, key: str) -> int:
        """See `ObjectStore`."""
        with translate_s3_errors(key):
            head = self._client.head_object(Bucket=self._bucket, Key=checked_key(key))
        return head["ContentLength"]

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        with translate_s3_errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=checked_key(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore`."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=checked_prefix(prefix)
        )
        with translate_s3_errors(prefix):
            for page in pages:
                for entry in page.get("Contents", ()):
                    modified_s = entry["LastModified"].timestamp()
                    yield ObjectInfo(entry["Key"], entry["Size"], modified_s)

    def sweep_temporary(self, older_than_s: float) -> int:
        """See `ObjectStore`. Age counts from the last part."""
        newest_s = self._clock.wall_s() - older_than_s
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket)
        count = 0
        with translate_s3_errors(""):
            for page in pages:
                for upload in page.get("Uploads", ()):
                    begun_s = upload["Initiated"].timestamp()
                    key, upload_id = upload["Key"], upload["UploadId"]
                    if begun_s <= newest_s and self._is_abandoned(key, upload_id, newest_s):
                        self._client.abort_multipart_upload(
                            Bucket=self._bucket, Key=key, UploadId=upload_id
                        )
                        count += 1
        return count

    def _is_abandoned(self, key: str, upload_id: str, newest_s: float) -> bool:
        """Whether no part is newer. An upload that has ended meanwhile is not abandoned."""
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self._bucket, Key=key, UploadId=upload_id
        )
        try:
            with translate_s3_errors(key):
                return all(
                    part["LastModified"].timestamp() <= newest_s
                    for page in pages
                    for part in page.get("Parts", ())
                )
        except S3UploadNotFoundError:
            return False


def _no_blocks() -> ObjectBlocks:
    return ObjectBlocks(lambda _: b"", lambda: None, 0)


def s3_client(settings: S3Settings) -> "S3Client":
    """Return a client, which is safe for threads; boto3's default session is not."""
    access, secret = settings.access_key, settings.secret_key
    custom = settings.endpoint_url is not None
    return boto3.session.Session().client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name=settings.region,
        aws_access_key_id=access.get_secret_value() if access else None,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        config=Config(
            connect_timeout=settings.connect_timeout_s,
            read_timeout=settings.read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": settings.tries_max},
            max_pool_connections=settings.connections_max,
            tcp_keepalive=True,
            s3={"addressing_style": "path" if custom else "auto"},
            # Other servers than Amazon's often lack the newer checksum headers.
            request_checksum_calculation="when_required" if custom else "when_supported",
            response_checksum_validation="when_required" if custom else "when_supported",
        ),
    )
