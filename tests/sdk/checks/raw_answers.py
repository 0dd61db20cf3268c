"""Raw responses."""

from tests.sdk.checks.site import Site, equal


def with_raw_response(site: Site) -> None:
    raw = site.client.models.with_raw_response.list()
    equal(raw.status_code, 200)
    equal(raw.headers["content-type"], "application/json")
    equal(bool(raw.headers["x-request-id"]), True)
    equal(site.chat_model in {model.id for model in raw.parse().data}, True)


def with_streaming_response(site: Site) -> None:
    with site.client.models.with_streaming_response.list() as raw:
        equal(raw.status_code, 200)
        equal(site.chat_model in {model.id for model in raw.parse().data}, True)


def with_a_request_id(site: Site) -> None:
    one, other = (site.client.models.retrieve(site.chat_model) for _ in range(2))
    request_id = one._request_id  # documented by the client
    equal(bool(request_id), True)
    equal(request_id == other._request_id, False)


async def through_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        raw = await client.models.with_raw_response.retrieve(site.other_model)
        equal(raw.parse().id, site.other_model)
