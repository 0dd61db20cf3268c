"""KEDA's external-push scaler: the target of a pool as a metric whose target is 1 per replica.

An HPA divides the metric by 1, so it computes exactly the target (AverageValue). Without a fresh
decision the answer is UNAVAILABLE, on which KEDA and the HPA change nothing; it is never 0.
"""

from collections.abc import AsyncIterator
from typing import Any, Final, NoReturn

import grpc

from autoscaler.actuators.keda import externalscaler_pb2 as wire
from autoscaler.actuators.keda.scaling_values import (
    KindSelector,
    ScalingValues,
    UnavailableValueError,
    value_past_tolerance,
)

SERVICE: Final = "externalscaler.ExternalScaler"
METRIC: Final = "replicas"
STREAMS_MAX: Final = 512
_MESSAGE_BYTES_MAX: Final = 64 * 1024
_RPCS_MAX: Final = 1_024
_RECHECK_S: Final = 5.0
"""How often a stream looks whether a decision is still fresh."""

_STOP_S: Final = 1.0


class ScalerReading:
    """Reads values as a scaler asks for them: by pool and, where it says so, by kind."""

    def __init__(self, name: str, values: ScalingValues, *, past_tolerance: bool) -> None:
        """`name` is that of the actuator's table in the policy file."""
        self._name = name
        self._values = values
        self._past_tolerance = past_tolerance

    def target(self, pool: str, selector: KindSelector) -> int:
        """Return the replicas that were decided. Raises UnavailableValueError."""
        return selector.count(self._values.fresh(pool, self._name).kinds)

    def value(self, pool: str, selector: KindSelector) -> int:
        """Return the value of the metric. Raises UnavailableValueError."""
        target = self.target(pool, selector)
        current = self._values.existing(pool, selector)
        if not self._past_tolerance or current is None or target == 0:
            return target
        return value_past_tolerance(target, current)

    def is_active(self, pool: str, selector: KindSelector) -> bool:
        """Return whether the pool is to have a replica. Raises UnavailableValueError."""
        return self.target(pool, selector) > 0

    async def wait_change(self) -> None:
        """Return after a change, or when freshness is to be checked again."""
        await self._values.wait_change(_RECHECK_S)


class ExternalScalerServer:
    """The gRPC server that KEDA calls."""

    def __init__(self, reading: ScalerReading, host: str, port: int) -> None:
        """Port 0: any free one."""
        self._reading = reading
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._streams = 0
        self._server: Any = None
        self.port = port

    async def start(self) -> None:
        """Open the port. Raises OSError."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=_RPCS_MAX,
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            self.port = self._server.add_insecure_port(self._address)
        except RuntimeError:
            raise OSError(f"cannot listen on {self._address}") from None
        await self._server.start()

    async def stop(self) -> None:
        """End streams and close the port."""
        if self._server is not None:
            await self._server.stop(_STOP_S)

    def _handlers(self) -> Any:
        unary, ref = grpc.unary_unary_rpc_method_handler, wire.ScaledObjectRef.FromString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "IsActive": unary(self._is_active, ref, wire.IsActiveResponse.SerializeToString),
                "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                    self._stream_is_active, ref, wire.IsActiveResponse.SerializeToString
                ),
                "GetMetricSpec": unary(
                    self._metric_spec, ref, wire.GetMetricSpecResponse.SerializeToString
                ),
                "GetMetrics": unary(
                    self._metrics,
                    wire.GetMetricsRequest.FromString,
                    wire.GetMetricsResponse.SerializeToString,
                ),
            },
        )

    async def _is_active(self, request: Any, context: Any) -> Any:
        pool, selector = await _scope(request, context)
        try:
            return wire.IsActiveResponse(result=self._reading.is_active(pool, selector))
        except UnavailableValueError as error:
            await _unavailable(context, error)

    async def _stream_is_active(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Send whether the pool is active, now and at each change."""
        pool, selector = await _scope(request, context)
        if self._streams >= STREAMS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many streams.")
        self._streams += 1
        sent: bool | None = None
        try:
            while True:
                try:
                    active = self._reading.is_active(pool, selector)
                except UnavailableValueError as error:
                    await _unavailable(context, error)
                if active != sent:
                    yield wire.IsActiveResponse(result=active)
                    sent = active
                await self._reading.wait_change()
        finally:
            self._streams -= 1

    async def _metric_spec(self, request: Any, context: Any) -> Any:
        """Return the constant target: 1 per replica. No decision is needed for it."""
        await _scope(request, context)
        spec = wire.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return wire.GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, request: Any, context: Any) -> Any:
        pool, selector = await _scope(request.scaledObjectRef, context)
        try:
            value = self._reading.value(pool, selector)
        except UnavailableValueError as error:
            await _unavailable(context, error)
        return wire.GetMetricsResponse(
            metricValues=[
                wire.MetricValue(
                    metricName=request.metricName or METRIC,
                    metricValue=value,
                    metricValueFloat=float(value),
                )
            ]
        )


async def _scope(request: Any, context: Any) -> tuple[str, KindSelector]:
    """Return pool and kinds from the metadata of a trigger."""
    metadata = request.scalerMetadata
    pool, spot = metadata.get("pool", ""), metadata.get("spot")
    if not pool or spot not in {None, "true", "false"}:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            'The metadata of the trigger needs pool, and spot is "true" or "false".',
        )
    return pool, KindSelector(
        metadata.get("gpuType"), metadata.get("zone"), None if spot is None else spot == "true"
    )


async def _unavailable(context: Any, error: UnavailableValueError) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    raise AssertionError  # `abort` raises
