"""Goal: on a real API server, with its owners of fields, an upgrade keeps what a scaler has set."""

import asyncio
from typing import Any, Final

from tests.chart.cluster.actuators import platform_of
from tests.chart.cluster.nodes import ZONES, cordoned
from tests.chart.cluster.releases import FULLNAME, NO_DISK, Release
from tests.support.actuator_conformance import order
from tests.support.chart import CHART
from tests.support.until import until

CHANGED: Final = {"roles": {"api": {"env": {"MILLRACE_LOG_LEVEL": "debug"}}}}
SPOT: Final = ["spot.yaml"]
PLAIN: Final = tuple(f"plain-{zone}" for zone in ZONES)


def managers(chart: Release, name: str) -> set[tuple[str, str]]:
    """Return who owns the number of replicas of a Deployment."""
    fields = chart.deployments()[name]["metadata"]["managedFields"]
    return {
        (one["manager"], one["operation"])
        for one in fields
        if "f:replicas" in one["fieldsV1"].get("f:spec", {})
    }


async def test_upgrades_keep_the_replicas_that_the_actuator_has_set(chart: Release) -> None:
    chart.install(SPOT, NO_DISK)
    assert managers(chart, "chat-8b-h100") == {("helm", "Apply")}
    async with platform_of(chart) as platform:
        actuator = await platform.open_actuator()
        await actuator.apply(order(platform, 1, 4, 0, 3))
        expected = {
            "chat-8b-h100": 4,
            "chat-8b-h100-spot": 0,
            "chat-8b-l4": 3,
            "chat-8b-l4-spot": 0,
        }
        for over in (CHANGED, {}):
            chart.upgrade(SPOT, NO_DISK, over)
            assert pools(chart) == expected
            assert not any(one.startswith("helm") for one, _ in managers(chart, "chat-8b-h100"))
        await actuator.apply(order(platform, 1, 2, 1, 3, sequence=2))
        chart.upgrade(SPOT, NO_DISK, CHANGED)
        assert pools(chart) == {**expected, "chat-8b-h100": 2, "chat-8b-h100-spot": 1}
        assert (await actuator.observe("chat-8b")).epoch == 1


def pools(chart: Release) -> dict[str, int]:
    """Return the replicas of the Deployments of the pool."""
    return {name: one for name, one in chart.replicas().items() if name.startswith("chat-8b")}


async def test_an_upgrade_before_any_order_keeps_the_values_and_the_actuator_then_sets_them(
    chart: Release,
) -> None:
    chart.install(SPOT, NO_DISK)
    chart.upgrade(SPOT, NO_DISK, CHANGED)
    assert pools(chart)["chat-8b-h100"] == 1

    chart.scale("chat-8b-h100", 3)
    chart.upgrade(SPOT, NO_DISK)
    assert pools(chart)["chat-8b-h100"] == 3


async def test_a_number_that_changes_while_the_migration_runs_is_kept(chart: Release) -> None:
    chart.install(SPOT, NO_DISK)
    async with platform_of(chart) as platform:
        actuator = await platform.open_actuator()
        await actuator.apply(order(platform, 1, 2, 0, 2))
        with cordoned(chart.api, PLAIN):  # the pod of the migration waits
            upgrade = asyncio.create_task(asyncio.to_thread(chart.upgrade, SPOT, NO_DISK, CHANGED))
            await asyncio.to_thread(until, lambda: migration_pods(chart))
            await actuator.apply(order(platform, 1, 5, 0, 1, sequence=2))
        await upgrade
        assert (pools(chart)["chat-8b-h100"], pools(chart)["chat-8b-l4"]) == (5, 1)


async def test_a_first_change_while_the_migration_runs_is_a_conflict_until_the_next_upgrade(
    chart: Release,
) -> None:
    """Helm alone owned the number when the chart read it, so that the chart had to repeat it."""
    chart.install(SPOT, NO_DISK)
    values = chart.chosen(SPOT, NO_DISK, CHANGED)
    with cordoned(chart.api, PLAIN):
        upgrade = asyncio.create_task(asyncio.to_thread(chart.helm, "upgrade", CHART, *values))
        await asyncio.to_thread(until, lambda: migration_pods(chart))
        chart.scale("chat-8b-l4", 3)
    refused = await upgrade
    assert refused.returncode != 0
    assert "conflict occurred while applying object" in refused.stderr
    assert ".spec.replicas" in refused.stderr
    assert pools(chart)["chat-8b-l4"] == 3

    chart.upgrade(SPOT, NO_DISK, CHANGED)
    assert pools(chart)["chat-8b-l4"] == 3


async def test_a_rollback_keeps_the_replicas_unless_it_is_to_the_first_revision_by_force(
    chart: Release,
) -> None:
    chart.install(SPOT, NO_DISK)
    async with platform_of(chart) as platform:
        await (await platform.open_actuator()).apply(order(platform, 1, 4, 0, 3))
    scaled = pools(chart)
    chart.upgrade(SPOT, NO_DISK, CHANGED)
    chart.upgrade(SPOT, NO_DISK)

    later = chart.helm("rollback", "2", "--wait")
    assert later.returncode == 0, later.stderr
    assert pools(chart) == scaled
    first = chart.helm("rollback", "1", "--wait")
    assert first.returncode != 0
    assert ".spec.replicas" in first.stderr
    assert pools(chart) == scaled
    forced = chart.helm("rollback", "1", "--wait", "--force-conflicts")
    assert forced.returncode == 0, forced.stderr
    assert pools(chart)["chat-8b-h100"] == 1  # that of the values


def migration_pods(chart: Release) -> list[dict[str, Any]]:
    """Return the pods of the migration."""
    return chart.api.items(chart.path("pods"), "app.kubernetes.io/component=migration")


async def test_roles_without_a_policy_follow_the_values(chart: Release) -> None:
    chart.install(SPOT, NO_DISK)
    more: dict[str, Any] = {"roles": {"finaliser": {"replicas": 3}}}
    chart.upgrade(SPOT, NO_DISK, more)

    assert chart.replicas()["finaliser"] == 3
    chart.started_pods("finaliser", 3)
    chart.scale("finaliser", 5)
    refused = chart.helm("upgrade", CHART, *chart.chosen(SPOT, NO_DISK, more))
    assert refused.returncode != 0
    assert ".spec.replicas" in refused.stderr
    chart.scale("finaliser", 3)
    chart.upgrade(SPOT, NO_DISK, more)


async def test_a_number_goes_back_to_the_values_by_force(chart: Release) -> None:
    chart.install(SPOT, NO_DISK)
    chart.scale("chat-8b-h100", 5)
    outside = {"autoscaler": {"enabled": False}}
    refused = chart.helm("upgrade", CHART, *chart.chosen(SPOT, NO_DISK, outside))
    assert refused.returncode != 0
    assert "conflict" in refused.stderr
    assert pools(chart)["chat-8b-h100"] == 5

    forced = chart.chosen(SPOT, NO_DISK, outside)
    done = chart.helm("upgrade", CHART, *forced, "--force-conflicts")
    assert done.returncode == 0, done.stderr
    assert pools(chart)["chat-8b-h100"] == 1
    assert f"{FULLNAME}-autoscaler" not in chart.api.names(chart.path("deployments"))
