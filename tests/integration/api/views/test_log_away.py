"""Goal: without the log, items and results work; requests that need the log are refused."""

import time

import pytest

from api.views.view_services import ViewServices, create_view_services
from core.errors import SchemaTooNewError
from tests.integration.api.answers import ok, refused
from tests.integration.api.sites import OpenSite
from tests.integration.api.views.batches import add_batch, lines
from tests.integration.results.outcomes import outcome
from topics.settings import KafkaSettings

pytestmark = pytest.mark.timeout(300)


def test_only_requests_that_need_the_log_are_refused(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:1")

    def without_log(services: object, _: object, *others: object) -> ViewServices:
        return create_view_services(services, nowhere, *others)  # type: ignore[arg-type]

    monkeypatch.setattr("api.app.create_view_services", without_log)
    site = open_site()
    batch = add_batch(site, 4)
    batch.write(outcome(1))
    with site.client() as client:
        began_s = time.monotonic()
        page = ok(client.get(f"{batch.path}/items"))
        assert time.monotonic() - began_s < 10
        assert [item["status"] for item in page["data"]] == [
            "queued", "succeeded", "queued", "queued",
        ]  # fmt: skip
        began_s = time.monotonic()
        ok(client.get(f"{batch.path}/items"))
        assert time.monotonic() - began_s < 3  # it is not asked again so soon
        assert len(lines(client.get(f"{batch.path}/results"))) == 1
        error = refused(client.get(f"{batch.path}/audit?log=true"), 503)
        assert error["code"] == "service_unavailable"
        assert ok(client.get(f"{batch.path}/audit"))["ok"]


def test_a_log_of_a_newer_release_is_not_audited(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:1")

    def newer_control(*_: object, **__: object) -> None:
        raise SchemaTooNewError(kind="outcomes", version=99)

    monkeypatch.setattr(
        "api.app.create_view_services",
        lambda services, _, *others: create_view_services(services, nowhere, *others),
    )
    monkeypatch.setattr("api.views.audit_routes.committed_offset", lambda *_: 0)
    monkeypatch.setattr("api.views.audit_routes.tally_log", newer_control)
    site = open_site()
    batch = add_batch(site, 4)
    with site.client() as client:
        error = refused(client.get(f"{batch.path}/audit?log=true"), 503)
    assert error["code"] == "service_unavailable"
