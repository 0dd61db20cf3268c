"""TCP faults between a host and a service. A target is `route:mode`: `kafka-a:blackhole`."""

from typing import cast

from chaos.faults.healing import Heal, already_healed
from chaos.installations.installation import Installation
from chaos.installations.proxy import Mode


def set_proxy_mode(installation: Installation, target: str) -> Heal:
    """Set the mode of a proxy route, or reset its connections once (`reset`)."""
    route, _, mode = target.partition(":")
    if mode == "reset":
        installation.proxy.reset(route)
        return already_healed
    installation.proxy.set_mode(route, cast("Mode", mode))

    def heal() -> None:
        installation.proxy.set_mode(route, "pass")

    return heal
