"""Goal: the tables of webhooks show why deliveries fail."""

from cli.admin.webhooks import last_try_text, state_text


def test_a_disabled_endpoint_shows_its_reason() -> None:
    assert state_text({"millrace": {"enabled": True, "disabled_reason": None}}) == "enabled"
    assert state_text({"millrace": {"enabled": False, "disabled_reason": "gone"}}) == (
        "disabled: gone"
    )


def test_a_delivery_shows_the_result_of_its_last_try() -> None:
    silent = {"status_code": None, "error_code": "timed_out"}
    refused = {"status_code": 500, "error_code": "5xx"}

    assert last_try_text({"attempts": []}) == ""
    assert last_try_text({"attempts": [silent, refused]}) == "500"
    assert last_try_text({"attempts": [refused, silent]}) == "timed_out"
