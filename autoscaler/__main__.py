"""`python -m autoscaler`: decides how many replicas each pool has. Several may run."""

from core.runtime.garbage_collection import uncollected_imports

with uncollected_imports():
    import asyncio
    import os
    import socket
    import sys
    import threading
    from collections.abc import Mapping
    from typing import Final
    from uuid import uuid4

    from autoscaler.actuators.embedded import EmbeddedActuator
    from autoscaler.actuators.factory import ActuatorDependencies
    from autoscaler.actuators.keda.keda_settings import KedaSettings
    from autoscaler.actuators.keda.scaling_values import ScalingValues
    from autoscaler.actuators.kubernetes.kubernetes_settings import KubernetesSettings
    from autoscaler.actuators_in_force import ActuatorsInForce
    from autoscaler.autoscaler_role import ROLE, run_autoscaler
    from autoscaler.policies.policy_file import PolicyFile
    from autoscaler.policies.policy_reader import InvalidPoliciesError
    from autoscaler.settings import AutoscalerSettings
    from core.clock import SystemClock
    from core.runtime.logs import configure_logs
    from core.runtime.metrics import serve_metrics
    from core.runtime.role_lifecycle import run_role
    from core.runtime.shutdown import stop_on_signals
    from core.settings import read_all
    from topics.clients.admin import TopicAdmin
    from topics.clients.start_check import check_topics, topics_of_role
    from topics.settings import KafkaSettings

_BROKER_WAIT_S: Final = 60.0


def main(env: Mapping[str, str]) -> int:
    """Run the role until a signal; return the exit code."""
    configure_logs(ROLE)
    stop = stop_on_signals()
    return run_role(lambda: run(env, stop), refused=(InvalidPoliciesError,))


def run(env: Mapping[str, str], stop: threading.Event) -> None:
    """Decide until `stop`.

    Raises SettingsError, InvalidPoliciesError, KafkaUnavailableError, TopicDriftError and
    SchemaTooNewError.
    """
    settings, kafka, kubernetes, keda = read_all(
        env,
        AutoscalerSettings.from_env,
        KafkaSettings.from_env,
        KubernetesSettings.from_env,
        KedaSettings.from_env,
    )
    clock, socket_path = SystemClock(), settings.socket
    dependencies = ActuatorDependencies(
        kubernetes=kubernetes,
        keda=keda,
        values=ScalingValues(clock.wall_s),
        clock=clock,
        env=env,
        open_embedded=None if socket_path is None else lambda: EmbeddedActuator(str(socket_path)),
    )
    actuators = ActuatorsInForce(PolicyFile(settings.policy_file), dependencies, settings.actuator)
    serve_metrics(settings)
    check_topics(TopicAdmin(kafka), topics_of_role(ROLE), broker_wait_s=_BROKER_WAIT_S)
    process_id = f"{ROLE}-{socket.gethostname()}-{uuid4().hex[:12]}"
    asyncio.run(run_autoscaler(settings, kafka, stop, process_id=process_id, actuators=actuators))


if __name__ == "__main__":
    sys.exit(main(os.environ))
