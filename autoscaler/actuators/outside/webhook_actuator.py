"""An actuator that posts signed orders to an HTTP server of the operator.

Signed as Millrace's webhooks are (Standard Webhooks). The receiver keeps the epochs. No redirect is
followed and no proxy used, so an order reaches the named server or none.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

import aiohttp

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    ActuatorTimeoutError,
    Observed,
    PoolOrder,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.actuators.bounded_bodies import read_bounded
from autoscaler.actuators.outside.order_messages import (
    ANSWER_BYTES_MAX,
    check_applied,
    failure_of,
    observe_message,
    order_message,
    read_observed,
)
from core.webhook_signatures import secret_of_text, signed_headers

_SECRET_CHARS_MAX: Final = 1_024
_STATUSES: Final[dict[int, type[ActuatorError]]] = {
    401: ActuatorDeniedError,
    403: ActuatorDeniedError,
    404: UnknownPoolError,
    409: ActuatorConflictError,
}


class WebhookActuator:
    """Posts each order to a URL."""

    kind: ClassVar[str] = "webhook"
    chooses_removals: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        url: str,
        secret_file: Path,
        *,
        timeout_s: float,
        now_s: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        """`name` is that of the table in the policy file.

        `now_s` returns seconds since the epoch; `new_id` a text that is unique for each call.
        """
        self._name = name
        self._url = url
        self._secret_file = secret_file
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._new_id = new_id
        self._session: aiohttp.ClientSession | None = None

    async def apply(self, order: PoolOrder) -> None:
        """Post an order. Raises ActuatorError."""
        check_applied(await self._post(order_message(self._name, order)), order)

    async def observe(self, pool: str) -> Observed:
        """Post `{"action":"observe"}`. Raises ActuatorError."""
        answer = await self._post(observe_message(self._name, pool))
        return read_observed(answer, pool, self._name)

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, body: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                status, answer = await self._exchange(body)
        except TimeoutError:
            raise ActuatorTimeoutError from None
        except aiohttp.ClientError:
            raise ActuatorError("The receiver of orders cannot be reached.") from None
        if status == 200:
            return answer
        if 200 <= status < 400:
            raise UnexpectedAnswerError(status=status)
        raise failure_of(answer, _STATUSES.get(status, ActuatorError))

    async def _exchange(self, body: bytes) -> tuple[int, bytes]:
        if self._session is None:
            # The limit is that of the whole exchange, in `_post`.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), cookie_jar=aiohttp.DummyCookieJar()
            )
        secret = await asyncio.to_thread(self._read_secret)
        headers = signed_headers([secret], self._new_id(), int(self._now_s()), body)
        headers["content-type"] = "application/json"
        async with self._session.post(
            self._url, data=body, headers=headers, allow_redirects=False
        ) as response:
            return response.status, await read_bounded(response.content, ANSWER_BYTES_MAX)

    def _read_secret(self) -> bytes:
        """Return the secret as the file has it now. Raises ActuatorDeniedError."""
        try:
            with self._secret_file.open("rb") as file:
                return secret_of_text(file.read(_SECRET_CHARS_MAX).decode("ascii").strip())
        except (OSError, ValueError):
            raise ActuatorDeniedError("The file of the signing secret cannot be used.") from None
