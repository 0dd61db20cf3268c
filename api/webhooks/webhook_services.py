"""Services for the routes of webhooks: settings, encryption of secrets, look-ups of hosts."""

import asyncio
import secrets
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from fastapi import Depends, Request

from api.http.errors import ApiError, unavailable
from core.runtime.open_files import ResourceExhaustedError
from jobs.errors import InvalidFieldError
from results.webhooks.endpoints.address_policy import AddressPolicy, address_policy
from results.webhooks.endpoints.callbacks import Callback
from results.webhooks.endpoints.endpoints import check_event_types
from results.webhooks.endpoints.name_resolution import (
    AddressRefusedError,
    DnsLookups,
    DnsLookupsBusyError,
    allowed_addresses,
    system_resolver,
)
from results.webhooks.endpoints.receiver_urls import ReceiverUrl, UrlError, parse_url
from results.webhooks.endpoints.signing_secrets import SecretCipher
from results.webhooks.events.messages import TERMINAL_EVENTS
from results.webhooks.settings import WebhookSettings

_LOOK_UP_S: Final = 4.0
_LOOK_UP_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class WebhookServices:
    """The services of one API process. Only the webhooks role contacts receivers."""

    settings: WebhookSettings
    reach: AddressPolicy
    look_ups: DnsLookups
    optional_sealer: SecretCipher | None

    @property
    def sealer(self) -> SecretCipher:
        """The encryption of secrets. Raises ApiError when this installation has no key."""
        if self.optional_sealer is None:
            raise _not_configured()
        return self.optional_sealer

    async def validate_url(self, tenant_id: UUID, text: str, *, param: str) -> ReceiverUrl:
        """Return a parsed URL whose host may be contacted. Raises InvalidFieldError, ApiError.

        A hanging look-up delays only look-ups of its tenant. The webhooks role looks hosts up again
        before each attempt, since their addresses may change.
        """
        try:
            url = parse_url(text, allow_private=self.settings.allow_private)
            async with asyncio.timeout(_LOOK_UP_S):
                addresses = await self.look_ups.start(tenant_id, url)
                await allowed_addresses(addresses, self.reach)
        except UrlError as error:
            raise InvalidFieldError(str(error), param=param) from None
        except AddressRefusedError:
            # The same error for an unknown name: clients must not learn about internal names.
            raise InvalidFieldError("The host has no public address.", param=param) from None
        except (TimeoutError, DnsLookupsBusyError, ResourceExhaustedError):
            raise unavailable(
                "The host could not be looked up in time.",
                retry_after_s=2,
                code="service_unavailable",
            ) from None
        return url

    async def validate_callback(
        self, tenant_id: UUID, text: str | None, events: list[str] | None
    ) -> Callback | None:
        """Return the callback of a new job, or None. Raises ApiError, InvalidFieldError.

        Without `events` it receives the terminal event of the job.
        """
        if text is None:
            if events is not None:
                message = "callback_events requires callback_url."
                raise InvalidFieldError(message, param="callback_url")
            return None
        if events is not None:
            check_event_types(events, param="callback_events")
        if self.optional_sealer is None:
            raise _not_configured()
        url = await self.validate_url(tenant_id, text, param="callback_url")
        return Callback(text, url, events or TERMINAL_EVENTS)


def webhook_services(settings: WebhookSettings) -> WebhookServices:
    """Return the services that `settings` describe."""
    keys = settings.keys()
    return WebhookServices(
        settings=settings,
        reach=address_policy(settings),
        look_ups=DnsLookups(system_resolver, count_max=_LOOK_UP_THREADS, wait_s=_LOOK_UP_S),
        optional_sealer=SecretCipher(keys, secrets.token_bytes) if keys else None,
    )


def _not_configured() -> ApiError:
    return ApiError(
        400, "Webhooks are not configured on this installation.", code="webhooks_unavailable"
    )


async def _services_of(request: Request) -> WebhookServices:
    services: WebhookServices = request.app.state.webhooks
    return services


WebhookServicesDep = Annotated[WebhookServices, Depends(_services_of)]
