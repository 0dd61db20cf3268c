"""TCP faults between a host and a service; a target is `route:mode`, e.g. `kafka-a:blackhole`."""

from typing import cast

from chaos.faults.healing import Heal, already_healed
from chaos.installations.installation import Installation
from chaos.installations.proxy import Mode


def set_proxy_mode(installation: Installation, target: str) -> Heal:
    """Put a route into a mode of the proxy, or cut its connections off once (`reset`)."""
    route, _, mode = target.partition(":")
    if mode == "reset":
        installation.proxy.reset(route)
        return already_healed
    installation.proxy.set_mode(route, cast("Mode", mode))

    def heal() -> None:
        installation.proxy.set_mode(route, "pass")

    return heal
