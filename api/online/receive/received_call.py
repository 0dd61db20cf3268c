"""The result of receiving: an authenticated, parsed call."""

from dataclasses import dataclass

from api.online.calls import ParsedCall
from api.online.receive.exchange import Exchange
from tenancy.api_keys import Principal


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """A call as its client sent it."""

    exchange: Exchange
    principal: Principal
    parsed: ParsedCall
