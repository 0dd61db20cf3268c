"""`millrace models verify`: check a version in the store, or a folder, against its signature."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.admin.operator_connections import DataOption, object_store, transaction
from cli.exits import ExitCode
from cli.output import FormatOption, OutputFormat, write_output
from core.errors import SettingsError
from registry.manifests.model_folder import scan_folder
from registry.signing.keys import PublicKey
from registry.signing.model_signature import (
    BUNDLE_BYTES_MAX,
    require_same_files,
    verify_bundle,
)
from registry.store.keys import PEM_BYTES_MAX
from registry.store.version_check import CheckedPart, check_version, read_version_to_check

_HEADERS = ("part", "name", "problem")


def verify(
    model: Annotated[
        str, typer.Argument(help="A name, an alias, NAME@VERSION, or a folder with --signature.")
    ],
    signature: Annotated[
        Path | None, typer.Option(help="A signature of the folder, also of `model-signing`.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="File with the public key of --signature, in PEM.")
    ] = None,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Read every file of a version again, and check its digests, signatures and keys.

    Exit code 1: a replica would not load it. With --signature and --key check a folder instead.
    """
    if (signature is None) != (key is None):
        raise SettingsError("--signature and --key go together")
    if signature is not None and key is not None:
        count = verify_folder(Path(model), signature, key)
        typer.echo(f"{model}: {count} files are as they were signed.", err=True)
        return
    parts: list[CheckedPart] = []
    is_sound = _verify_version(model, data, parts)
    found = {"model": model, "is_sound": is_sound, "parts": [asdict(part) for part in parts]}
    write_output(output_format, found, _HEADERS, lambda: part_rows(parts))
    if any(part.kind == "file" and part.problem for part in parts):
        typer.echo(
            "millrace: to repair the files, publish the same source again: "
            "`millrace models push SOURCE --name NAME --sign KEY --replace`.",
            err=True,
        )
    if not is_sound:
        raise typer.Exit(ExitCode.FAILED)


def verify_folder(folder: Path, signature: Path, key: Path) -> int:
    """Return the number of files of a folder that has exactly what was signed.

    Raises InvalidManifestError, InvalidKeyError, InvalidSignatureError, OSError.
    """
    with key.open("rb") as opened:
        public = PublicKey.from_pem(opened.read(PEM_BYTES_MAX))
    with signature.open("rb") as opened:
        bundle = opened.read(BUNDLE_BYTES_MAX + 1)
    signed = verify_bundle(bundle, {public.key_id: public})
    require_same_files(signed, scan_folder(folder, allows_code=True))
    return len(signed)


def _verify_version(model: str, data: Path | None, parts: list[CheckedPart]) -> bool:
    with transaction(data) as connection:
        known = read_version_to_check(connection, model)
    return check_version(object_store(data), known, parts.append)


def part_rows(parts: list[CheckedPart]) -> list[tuple[str, ...]]:
    """Return the lines of checked parts."""
    return [(part.kind, part.name, part.problem or "none") for part in parts]
