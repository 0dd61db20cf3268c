"""`millrace batch provenance`: which model versions and engines ran the items of a job."""

from typing import Any, Final

from cli.api_client import Client, get_json, path_segment, with_client
from cli.batch.batch_commands import IdArgument
from cli.output import FormatOption, OutputFormat, write_output

_HEADERS: Final = ("model", "version", "base version", "engine", "items")


@with_client
def provenance(
    client: Client, job: IdArgument, output_format: FormatOption = OutputFormat.TABLE
) -> None:
    """Show the model versions and engines that ran items of a job, with the number of items."""
    found = get_json(client, f"/batches/{path_segment(job)}/provenance")
    write_output(output_format, found, _HEADERS, lambda: provenance_rows(found))


def provenance_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells under the headers; the last row counts items without provenance."""
    names = ("model", "version", "base_version", "engine", "items")
    rows = [tuple(str(one[name] or "") for name in names) for one in found["data"]]
    unknown = found["unknown_items"]
    return [*rows, ("", "", "", "", str(unknown))] if unknown else rows
