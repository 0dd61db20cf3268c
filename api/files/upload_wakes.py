"""Wakes the pool of an input file while the file is uploaded.

The pool is that of the model in the first line, if the tenant may use it. An upload of another
purpose, with a model that is not known, or whose purpose comes after a long file wakes nothing:
the batch wakes the pool later.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self
from uuid import UUID

from starlette.requests import Request

from api.files.first_line import FirstLine
from api.online.online_runtime import OnlineRuntime
from api.online.send.wake_requests import UploadSpeed
from jobs.store.files import INPUT_PURPOSE


class UploadWake:
    """Tells of one upload from its first line on, until the block ends."""

    def __init__(self, online: OnlineRuntime | None, tenant_id: UUID) -> None:
        """Without online calls, no model is known and nothing is told."""
        self._online, self._tenant_id = online, tenant_id
        self._line = FirstLine()
        self._is_decided = online is None
        self._uploading = ExitStack()
        self._speed: UploadSpeed | None = None  # of an upload that is told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._uploading.close()

    def passing(self, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a function that gives the bytes of the file to `take`, too."""
        if self._is_decided:
            return take

        def pass_on(data: bytes) -> None:
            take(data)
            if self._speed is not None:
                self._speed.received_bytes += len(data)
            elif not self._is_decided:
                self._line.feed(data)

        return pass_on

    def check(self, fields: Mapping[str, str]) -> None:
        """Tell of the upload once its purpose, one of the `fields` so far, and model are known."""
        if self._is_decided or "purpose" not in fields:
            return
        if fields["purpose"] != INPUT_PURPOSE:
            self._is_decided = True  # its lines are not looked at any more
            return
        if not self._line.is_decided:
            return
        self._is_decided = True
        online, model = self._online, self._line.model
        if online is None or model is None:
            return
        pool = online.models.known_pool(model, self._tenant_id)
        if pool is not None:
            told = online.wake_requests.uploading(pool)
            self._speed = self._uploading.enter_context(told)


def upload_wake(request: Request, tenant_id: UUID) -> UploadWake:
    """Return what tells of an upload of a tenant."""
    return UploadWake(request.app.state.online, tenant_id)
