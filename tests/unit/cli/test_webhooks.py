"""Goal: the tables of webhooks say why nothing comes."""

from cli.admin.webhook_commands import last_try_text, state_text


def test_an_endpoint_says_why_it_is_disabled() -> None:
    assert state_text({"millrace": {"enabled": True, "disabled_reason": None}}) == "enabled"
    assert state_text({"millrace": {"enabled": False, "disabled_reason": "gone"}}) == (
        "disabled: gone"
    )


def test_a_delivery_says_how_its_last_try_went() -> None:
    silent = {"status_code": None, "error_code": "timed_out"}
    refused = {"status_code": 500, "error_code": "5xx"}

    assert last_try_text({"attempts": []}) == ""
    assert last_try_text({"attempts": [silent, refused]}) == "500"
    assert last_try_text({"attempts": [refused, silent]}) == "timed_out"
