"""Models, through the client."""

from functools import partial

import openai

from tests.sdk.checks.site import Site, equal, refused


def listed(site: Site) -> None:
    names = {model.id for model in site.client.models.list()}
    equal(names >= {site.chat_model, site.embedding_model}, True)
    equal(names <= {site.chat_model, site.embedding_model, site.other_model, site.idle_model}, True)


def retrieved_as_listed(site: Site) -> None:
    for model in site.client.models.list():
        equal(model.object, "model")
        equal(site.client.models.retrieve(model.id), model)


def retrieved_with_a_slash(site: Site) -> None:
    """Some releases send the slash as it is, others percent-encode it."""
    equal("/" in site.other_model, True)
    equal(site.client.models.retrieve(site.other_model).id, site.other_model)


def missing(site: Site) -> None:
    for name in ("nope", "no/such/model", "größe 数"):
        error = refused(openai.NotFoundError, partial(site.client.models.retrieve, name))
        equal(error.code, "model_not_found")


async def through_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        names = [model.id async for model in client.models.list()]
        equal(site.chat_model in names, True)
