"""Output and error files of jobs."""

from collections.abc import Mapping
from typing import Any

from chaos.checkers.results import Tally, Usage, tally_from_files
from chaos.clients.client import Client
from chaos.errors import NotServedError


class JobFiles:
    """The output and error files of a terminal job."""

    def __init__(self, client: Client, job: Mapping[str, Any]) -> None:
        """Read both files; every line of an unreadable file counts as missing."""
        self.unreadable: list[str] = []
        self.output = self._lines(client, job.get("output_file_id"))
        self.errors = self._lines(client, job.get("error_file_id"))

    def _lines(self, client: Client, file_id: str | None) -> list[dict[str, Any]]:
        try:
            return client.read_lines(file_id)
        except NotServedError as failure:
            self.unreadable.append(str(failure))
            return []

    def custom_ids(self) -> list[str]:
        """Return the custom ids in both files."""
        return [line["custom_id"] for line in self.output + self.errors]

    def usage(self) -> Usage:
        """Return the billed usage of the lines; a failed item with a response is billed."""
        usages = [line["response"]["body"]["usage"] for line in self.output]
        return Usage(
            items=len(self.output) + sum(bool(line.get("response")) for line in self.errors),
            input_tokens=sum(usage["prompt_tokens"] for usage in usages),
            output_tokens=sum(usage.get("completion_tokens", 0) for usage in usages),
        )

    def error_codes(self) -> dict[str, str]:
        """Return custom id to error code of the failed items."""
        return {line["custom_id"]: _code(line) for line in self.errors}

    def tally(self) -> Tally:
        """Return the items by outcome, and their tokens."""
        return tally_from_files(self.usage(), len(self.output), map(_code, self.errors))


def _code(line: Mapping[str, Any]) -> str:
    if line.get("error"):
        return str(line["error"]["code"])
    return str(line["response"]["body"]["error"]["code"])
