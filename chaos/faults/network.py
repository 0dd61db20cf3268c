"""TCP faults between a host and a service; a target is `route:mode`, e.g. `kafka-a:blackhole`."""

from typing import cast

from chaos.faults.healing import Cure, nothing
from chaos.installations.installation import Installation
from chaos.installations.proxy import Mode


def misbehave(running: Installation, target: str) -> Cure:
    """Put a route into a mode of the proxy, or cut its connections off once (`reset`)."""
    route, _, mode = target.partition(":")
    if mode == "reset":
        running.proxy.reset(route)
        return nothing
    running.proxy.set_mode(route, cast("Mode", mode))

    def heal() -> None:
        running.proxy.set_mode(route, "pass")

    return heal
