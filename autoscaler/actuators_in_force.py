"""The scaling policies in force and their actuators, which follow changes of the policy file."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from autoscaler.actuators.actuator import Actuator
from autoscaler.actuators.actuator_tables import ActuatorTable, EmbeddedTable
from autoscaler.actuators.factory import ActuatorDependencies, build_actuators
from autoscaler.actuators.keda.scaling_values import ScalingValues
from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_file import PolicyFile
from core.errors import MillraceError

_CLOSE_S: Final = 5.0
_RETRY_S: Final = 30.0
_LOG = logging.getLogger(__name__)

EMBEDDED: Final = "embedded"
"""Name and kind of the actuator of `millrace up`, which needs no table."""


class ActuatorsInForce:
    """The policies and the actuators by name. For one event loop."""

    def __init__(self, file: PolicyFile, dependencies: ActuatorDependencies, default: str) -> None:
        """`default` is the name of the actuator of pools whose policy names none."""
        self._file, self._dependencies, self._default = file, dependencies, default
        self._tables: dict[str, ActuatorTable] = {}
        self._actuators: dict[str, Actuator] = {}
        self._retry_s: dict[str, float] = {}  # when to open an actuator again that failed, by name

    @property
    def policies(self) -> Policies:
        """The policies in force."""
        return self._file.policies

    @property
    def actuators(self) -> Mapping[str, Actuator]:
        """The actuators by name."""
        return self._actuators

    @property
    def values(self) -> ScalingValues:
        """What KEDA's scaler serves."""
        return self._dependencies.values

    def name_of(self, policies: Policies, pool: str) -> str:
        """Return the name of a pool's actuator: that of its policy, else the default."""
        return policies.actuator_of(pool) or self._default

    async def open(self) -> None:
        """Build the actuators. Raises SettingsError."""
        await self._build(self._tables_to_open())

    async def refresh(self) -> None:
        """Read a changed file; a bad one keeps what is in force, and each problem is logged.

        An actuator whose table did not change stays open. One that could not be opened is tried
        again each 30 s.
        """
        reload = await asyncio.to_thread(self._file.refresh)
        if reload is None:
            await self._retry()
            return
        for problem in reload.problems:
            _LOG.error("the scaling policies are not valid", extra={"reason": problem})
        if not reload.is_accepted:
            return
        tables = self._tables_to_open()
        self._retry_s.clear()
        for name in [one for one in self._tables if tables.get(one) != self._tables[one]]:
            del self._tables[name]
            await _close(self._actuators.pop(name))
        for name, table in tables.items():
            if name not in self._tables:
                await self._open_one(name, table)
        _LOG.info("the scaling policies changed")

    async def close(self) -> None:
        """Close all actuators; errors are logged."""
        for actuator in self._actuators.values():
            await _close(actuator)
        self._actuators, self._tables = {}, {}

    def _tables_to_open(self) -> dict[str, ActuatorTable]:
        tables = dict(self.policies.actuators)
        if self._dependencies.open_embedded is not None:
            tables.setdefault(EMBEDDED, EmbeddedTable())
        return tables

    async def _build(self, tables: Mapping[str, ActuatorTable]) -> None:
        self._actuators |= await build_actuators(tables, self._dependencies)
        self._tables |= tables

    async def _retry(self) -> None:
        now_s, tables = self._dependencies.clock.monotonic_s(), self._tables_to_open()
        for name in [one for one, at_s in self._retry_s.items() if at_s <= now_s]:
            del self._retry_s[name]
            if name in tables:
                await self._open_one(name, tables[name])

    async def _open_one(self, name: str, table: ActuatorTable) -> None:
        try:
            await self._build({name: table})
        except MillraceError as error:  # its pools keep what they have
            self._retry_s[name] = self._dependencies.clock.monotonic_s() + _RETRY_S
            facts = {"actuator": name, "code": error.code, "reason": str(error)}
            _LOG.error("the actuator cannot be used", extra=facts)


async def _close(actuator: Actuator) -> None:
    try:
        await asyncio.wait_for(actuator.close(), _CLOSE_S)
    except (MillraceError, TimeoutError) as error:
        _LOG.warning("an actuator did not close", extra={"reason": type(error).__name__})
