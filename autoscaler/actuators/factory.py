"""Builds the actuators of a scaling policy file."""

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from autoscaler.actuators.actuator import Actuator
from autoscaler.actuators.actuator_tables import (
    NAMESPACE_PATTERN,
    ActuatorTable,
    CommandTable,
    EmbeddedTable,
    KedaTable,
    KubernetesTable,
)
from autoscaler.actuators.keda.external_scaler import ExternalScalerServer, ScalerReading
from autoscaler.actuators.keda.keda_actuator import KedaActuator
from autoscaler.actuators.keda.keda_settings import KedaSettings
from autoscaler.actuators.keda.scaling_values import ScalingValues
from autoscaler.actuators.keda.value_server import ValueServer
from autoscaler.actuators.kubernetes.kubernetes_actuator import KubernetesActuator
from autoscaler.actuators.kubernetes.kubernetes_client import KubernetesClient
from autoscaler.actuators.kubernetes.kubernetes_settings import KubernetesSettings
from autoscaler.actuators.measured_actuator import MeasuredActuator
from autoscaler.actuators.outside.command_actuator import CommandActuator
from autoscaler.actuators.outside.webhook_actuator import WebhookActuator
from autoscaler.actuators.safe_urls import url_problem
from core.clock import Clock
from core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class ActuatorDependencies:
    """What actuators are built from, beside their tables."""

    kubernetes: KubernetesSettings
    keda: KedaSettings
    values: ScalingValues
    clock: Clock
    env: Mapping[str, str]
    open_embedded: Callable[[], Actuator] | None = None  # None: no supervisor started this process


async def build_actuators(
    tables: Mapping[str, ActuatorTable], dependencies: ActuatorDependencies
) -> dict[str, Actuator]:
    """Return the actuators by name, each with its metrics. The caller closes them.

    Raises SettingsError; then everything that was opened is closed again.
    """
    found: dict[str, Actuator] = {}
    async with AsyncExitStack() as stack:
        for name, table in tables.items():
            actuator = await _build(name, table, dependencies)
            stack.push_async_callback(actuator.close)
            # `kind` is a class variable in the protocol, and one of the instance here.
            measured = MeasuredActuator(actuator, dependencies.clock.monotonic_s)
            found[name] = cast(Actuator, measured)
        stack.pop_all()
    return found


async def _build(name: str, table: ActuatorTable, dependencies: ActuatorDependencies) -> Actuator:
    match table:
        case EmbeddedTable():
            if dependencies.open_embedded is None:
                raise SettingsError(f"actuators.{name}: only `millrace up` has this kind")
            return dependencies.open_embedded()
        case KubernetesTable():
            return await asyncio.to_thread(_kubernetes, name, table, dependencies)
        case KedaTable():
            return await _keda(name, table, dependencies)
        case CommandTable():
            return CommandActuator(name, table.command, table.timeout_s, dependencies.env)
        case _:
            return WebhookActuator(
                name,
                table.url,
                Path(table.secret_file),
                timeout_s=table.timeout_s,
                now_s=dependencies.clock.wall_s,
                new_id=lambda: f"msg_{secrets.token_hex(16)}",
            )


def _kubernetes(
    name: str, table: KubernetesTable, dependencies: ActuatorDependencies
) -> KubernetesActuator:
    settings, env = dependencies.kubernetes, dependencies.env
    url = settings.url
    if url is None:
        host = env.get("KUBERNETES_SERVICE_HOST")
        if not host:
            raise SettingsError(f"{settings.env_prefix}URL is needed outside of Kubernetes")
        port = env.get("KUBERNETES_SERVICE_PORT_HTTPS", env.get("KUBERNETES_SERVICE_PORT", "443"))
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if problem := url_problem(url):
        raise SettingsError(f"{settings.env_prefix}URL: {problem}")
    namespace = table.namespace
    if namespace is None:
        try:
            namespace = settings.namespace_file.read_text("ascii").strip()
        except (OSError, ValueError):
            namespace = ""
        if re.match(NAMESPACE_PATTERN, namespace) is None:
            raise SettingsError(f"actuators.{name}: namespace is needed outside of Kubernetes")
    return KubernetesActuator(
        name,
        table,
        KubernetesClient(url, settings.token_file, settings.ca_file),
        namespace=namespace,
        monotonic_s=dependencies.clock.monotonic_s,
    )


async def _keda(name: str, table: KedaTable, dependencies: ActuatorDependencies) -> KedaActuator:
    settings, values = dependencies.keda, dependencies.values
    reading = ScalerReading(name, values, past_tolerance=table.value_past_tolerance)
    actuator = KedaActuator(
        name,
        values,
        ExternalScalerServer(reading, settings.host, settings.grpc_port),
        ValueServer(reading, settings.host, settings.http_port, settings.token_file),
    )
    try:
        await actuator.start()
    except OSError as error:
        raise SettingsError(f"{settings.env_prefix}…: cannot listen: {error}") from None
    return actuator
