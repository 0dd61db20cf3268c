"""Routes of vLLM without client methods, through the client's raw calls."""

from typing import Any

import openai

from tests.sdk.checks.site import Site, equal, refused

MEAL = "A man is eating food."
OTHERS = ["The queue of the printer is full.", "Someone eats a meal."]


def scored(site: Site) -> None:
    body = {"model": site.embedding_model, "text_1": MEAL, "text_2": OTHERS}
    answer: Any = site.client.post("/score", body=body, cast_to=object)
    printer, meal = (item["score"] for item in answer["data"])
    equal(meal > printer + 0.2, True)


def ranked(site: Site) -> None:
    body = {"model": site.embedding_model, "query": MEAL, "documents": OTHERS}
    answer: Any = site.client.post("/rerank", body=body, cast_to=object)
    equal([item["index"] for item in answer["results"]], [1, 0])


def not_served_by_the_model(site: Site) -> None:
    body = {"model": site.chat_model, "input": MEAL}
    for path in ("/classify", "/embeddings"):
        error = refused(
            openai.BadRequestError, site.client.post, path=path, body=body, cast_to=object
        )
        equal(sorted(error.body), ["code", "message", "param", "type"])
