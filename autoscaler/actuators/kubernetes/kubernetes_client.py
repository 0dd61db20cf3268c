"""Calls the API server of Kubernetes over HTTP. Files of the service account may be rotated."""

import asyncio
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.actuators.bounded_bodies import read_bounded

MERGE_PATCH: Final = "application/merge-patch+json"
JSON: Final = "application/json"
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_TOKEN_BYTES_MAX: Final = 64 * 1024
_ERRORS: Final[dict[int, type[ActuatorError]]] = {
    401: ActuatorDeniedError,
    403: ActuatorDeniedError,
    404: UnknownPoolError,
    409: ActuatorConflictError,
}
_TOKEN: Final = re.compile(r"[!-~]+")
_Stamp = tuple[int, int, int]


class KubernetesClient:
    """One API server. The caller bounds the time of each call."""

    def __init__(self, url: str, token_file: Path, ca_file: Path) -> None:
        """`url` has no path. Without TLS `ca_file` is not read."""
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._ca_file = ca_file
        self._token: tuple[_Stamp, str] | None = None
        self._tls: tuple[_Stamp, ssl.SSLContext] | None = None
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = JSON,
    ) -> Any:
        """Return the JSON that the server answers, decoded.

        Raises ActuatorDeniedError for 401 and 403, UnknownPoolError for 404, ActuatorConflictError
        for 409, UnexpectedAnswerError for what is no JSON object, else ActuatorError.
        """
        tls, token = await asyncio.to_thread(self._credentials)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with self._session.request(
                method,
                self._url + path,
                params=params,
                data=None if body is None else msgspec.json.encode(body),
                headers={
                    "authorization": f"Bearer {token}",
                    "accept": JSON,
                    "content-type": content_type,
                },
                allow_redirects=False,
                ssl=tls or True,
            ) as response:
                answer = await read_bounded(response.content, _ANSWER_BYTES_MAX)
        except aiohttp.ClientError:
            raise ActuatorError("The API server cannot be reached.") from None
        if not 200 <= response.status < 300:
            raise _ERRORS.get(response.status, ActuatorError)(status=response.status)
        try:
            return msgspec.json.decode(answer)
        except (msgspec.DecodeError, RecursionError):
            raise UnexpectedAnswerError("The API server's answer is not JSON.") from None

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    def _credentials(self) -> tuple[ssl.SSLContext | None, str]:
        """Return TLS and token by the files as they are now. Raises ActuatorDeniedError."""
        try:
            stamp = _stamp(self._token_file)
            if self._token is None or self._token[0] != stamp:
                with self._token_file.open("rb") as file:
                    token = file.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
                if not _TOKEN.fullmatch(token):  # it becomes a part of a header
                    raise ValueError
                self._token = stamp, token
            if self._url.startswith("https:"):
                stamp = _stamp(self._ca_file)
                if self._tls is None or self._tls[0] != stamp:
                    self._tls = stamp, ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ValueError):  # ssl.SSLError is an OSError
            raise ActuatorDeniedError("The files of the service account cannot be used.") from None
        return None if self._tls is None else self._tls[1], self._token[1]


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
