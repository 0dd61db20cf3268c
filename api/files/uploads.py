"""Uploads: from the socket to the object store, a file of any size in constant memory."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import sqlalchemy as sa

from api import metrics
from api.auth.authentication import KeyRevalidator, TenantRequest
from api.files.upload_form import FileForm, form_boundary, safe_filename, upload_fields
from api.files.upload_wakes import upload_wake
from api.http.errors import ApiError
from api.http.request_bodies import (
    MinReadRate,
    declared_bytes,
    read_at_min_rate,
    require_identity_encoding,
)
from api.idempotent_requests import IdempotentRequest
from api.runtime.object_threads import BlockingCalls, delete_object
from api.settings import ApiSettings
from core.clock import SystemClock
from core.ids import new_uuid
from jobs.errors import InvalidRequestError, StorageLimitError
from jobs.store.files import NewFile, StorageQuota, stored_bytes_left
from jobs.store.idempotency import StoredAnswer
from storage.objects.object_store import BLOCK_BYTES, ObjectStore, StoredObject, Upload

FORM_BYTES_MAX: Final = 256 * 1024
"""Bytes of a form in addition to its file: boundaries, headers and fields."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Limits of one new file."""

    file_bytes_max: int
    quota_left_bytes: int  # of the tenant's quota

    def check(self, file_bytes: int) -> None:
        """Raise ApiError (413) or StorageLimitError when a file is too large."""
        if file_bytes > self.file_bytes_max:
            message = f"The file exceeds {self.file_bytes_max} bytes."
            raise ApiError(413, message, code="file_too_large", param="file")
        if file_bytes > self.quota_left_bytes:
            raise StorageLimitError


async def receive_upload(request: TenantRequest, *, skips_quota: bool = False) -> NewFile:
    """Store the file of a request. Its object is complete, and has no row yet.

    `skips_quota` is for a possible replay: the tenant's quota may count this very file already.
    Raises ApiError, QuotaExceededError, DatabaseUnavailableError and the errors of the object
    store; then no object remains.
    """
    require_identity_encoding(request.http)
    services = request.services
    services.object_threads.require_capacity()  # before the body is read
    with services.uploads.acquire(request.tenant_id):
        boundary = form_boundary(request.http.headers.get("content-type", ""))
        if boundary is None:
            raise ApiError(415, "Send multipart/form-data.", code="unsupported_media_type")
        file_bytes_max = services.settings.file_bytes_max
        limits = UploadLimits(file_bytes_max, file_bytes_max)
        if not skips_quota:
            limits = await upload_limits(request)
        limits.check((declared_bytes(request.http) or 0) - FORM_BYTES_MAX)
        return await _store(request, boundary, limits)


async def upload_limits(request: TenantRequest) -> UploadLimits:
    """Return the limits of the tenant's next file.

    Raises QuotaExceededError, DatabaseUnavailableError.
    """
    settings = request.services.settings
    left = await request.run(stored_bytes_left, storage_quota(settings))
    return UploadLimits(settings.file_bytes_max, left)


async def commit_upload(
    request: IdempotentRequest,
    file: NewFile,
    work: Callable[[sa.Connection], object],
    *,
    sha256: bytes | None = None,
) -> tuple[StoredAnswer, bool]:
    """Execute `work`, which adds the row of `file`, once; delete an object that gets no row.

    See `IdempotentRequest.execute_once`.
    """
    objects = request.services.objects
    try:
        answer, is_replay = await request.execute_once(work, sha256=sha256)
    except InvalidRequestError:
        # After any other error the row may be committed, and must not refer to a deleted object.
        await delete_object(objects, file.object_key)
        raise
    if is_replay:
        await delete_object(objects, file.object_key)
    return answer, is_replay


def storage_quota(settings: ApiSettings) -> StorageQuota:
    """Return the default quota of every tenant."""
    return StorageQuota(settings.stored_bytes_max, settings.files_max)


async def _store(request: TenantRequest, boundary: bytes, limits: UploadLimits) -> NewFile:
    services, file_id = request.services, new_uuid()
    settings = services.settings
    async with ObjectSink(services.objects, f"files/{file_id.hex}") as sink:
        with upload_wake(request.http, request.tenant_id) as wake:
            form = FileForm(boundary, wake.passing(sink.buffer))
            received = 0
            revalidator = KeyRevalidator(request.http, services)
            rate = MinReadRate(
                window_s=settings.upload_idle_timeout_s,
                bytes_per_s_min=settings.upload_bytes_per_s_min,
            )
            async for data in read_at_min_rate(request.http, rate, SystemClock()):
                await revalidator.check_if_due()
                received += len(data)
                form.feed(data)
                wake.check(form.fields)
                limits.check(max(sink.size_bytes, received - FORM_BYTES_MAX))
                await sink.flush_full_blocks()
            form.finish()
            purpose, expires_after_s = upload_fields(form.fields)
            stored = await sink.complete()
    metrics.UPLOADED_BYTES.inc(stored.size_bytes)
    return NewFile(
        file_id=file_id,
        tenant_id=request.tenant_id,
        purpose=purpose,
        filename=safe_filename(form.filename or b""),
        object_key=stored.key,
        size_bytes=stored.size_bytes,
        sha256=stored.sha256_hex,
        expires_after_s=expires_after_s,
    )


class ObjectSink:
    """An upload. Leaving its block aborts it unless it is complete.

    It buffers at most a block and one read of the socket, however large the file. When the task is
    cancelled, a running write completes before the upload is aborted.
    """

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key
        self._buffer = bytearray()
        self._upload: Upload | None = None
        self._calls = BlockingCalls()
        self.size_bytes = 0  # buffered or written

    def buffer(self, data: bytes) -> None:
        """Buffer bytes. Call `flush_full_blocks` soon."""
        self._buffer += data
        self.size_bytes += len(data)

    async def flush_full_blocks(self) -> None:
        """Write when a block is full. Raises the errors of the object store."""
        if len(self._buffer) >= BLOCK_BYTES:
            await self._write()

    async def complete(self) -> StoredObject:
        """Make the object durable and visible. Raises the errors of the object store."""
        await self._write()
        assert self._upload is not None
        return await self._calls.run(self._upload.complete, if_absent=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        """Abort unless complete, also when cancelled again."""
        await self._calls.run_last(self._abort)

    async def _write(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        if self._upload is None:
            await self._calls.run(self._begin)
        assert self._upload is not None
        await self._calls.run(self._upload.write, data)

    def _begin(self) -> None:
        """Begin in a thread, which sets the upload itself: the task may be cancelled by then."""
        self._upload = self._objects.begin_upload(self._key)

    def _abort(self) -> None:
        if self._upload is not None:
            self._upload.abort()
