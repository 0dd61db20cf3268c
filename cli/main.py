"""The `millrace` command: one verb a module; data on stdout, notes on stderr."""

import typer

from cli import batch, demo, keys, models, roles, tenants, topics, up

app = typer.Typer(
    name="millrace",
    help="Bulk inference jobs and online calls on a durable log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("up")(up.up)
app.command("run")(roles.run)
app.command("demo")(demo.demo)
app.add_typer(batch.app, name="batch")
app.add_typer(keys.app, name="keys")
app.add_typer(tenants.app, name="tenants")
app.add_typer(models.app, name="models")
app.add_typer(topics.app, name="topics")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
