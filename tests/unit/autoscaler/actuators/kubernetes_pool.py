"""The Deployments of the pool that tests of the actuator `kubernetes` scale."""

from tests.support.actuator_platforms import KubernetesPlatform

ON_DEMAND, SPOT = "m-chat-l4", "m-chat-l4-spot"


def scales(platform: KubernetesPlatform) -> dict[str, int]:
    """Return the replicas that each Deployment is told to run."""
    found = platform.api.deployments.items()
    return {name: deployment["spec"]["replicas"] for name, deployment in found}
