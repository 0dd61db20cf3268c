"""The `millrace` command. Commands write data to stdout and notes to stderr."""

from core.runtime.garbage_collection import uncollected_imports

with uncollected_imports():
    import typer

    from cli.admin.audit_commands import app as audit_log
    from cli.admin.database_commands import app as database
    from cli.admin.model_commands import app as models
    from cli.admin.operator_commands import app as operators
    from cli.admin.quarantine_commands import app as quarantines
    from cli.admin.recover_command import recover_jobs
    from cli.admin.recovery_commands import rebuild_jobs
    from cli.admin.scale_commands import app as scale
    from cli.admin.tenant_commands import app as tenants
    from cli.admin.tenant_commands import keys
    from cli.admin.topic_commands import app as topics
    from cli.admin.webhook_commands import app as webhooks
    from cli.batch.background_job_commands import app as jobs
    from cli.batch.batch_commands import app as batch
    from cli.batch.dead_letter_commands import app as dlq
    from cli.batch.item_commands import audit, items, stream
    from cli.batch.provenance_command import provenance
    from cli.chat.chat_command import chat
    from cli.demo.demo_command import demo
    from cli.exits import EXIT_CODES_HELP, CommandGroup
    from cli.load.bench_online_command import bench_online
    from cli.output import prepare_streams
    from cli.stack.up_command import run, up

app = typer.Typer(
    name="millrace",
    cls=CommandGroup,
    help="Bulk inference jobs and online calls on a durable log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("up", epilog=EXIT_CODES_HELP)(up)
app.command("run")(run)
app.command("demo", epilog=EXIT_CODES_HELP)(demo)
app.command("rebuild", epilog=EXIT_CODES_HELP)(rebuild_jobs)
app.command("recover", epilog=EXIT_CODES_HELP)(recover_jobs)
app.command("chat", epilog=EXIT_CODES_HELP)(chat)
app.command("bench-online", epilog=EXIT_CODES_HELP)(bench_online)
batch.command("items")(items)
batch.command("stream")(stream)
batch.command("audit")(audit)
batch.command("provenance")(provenance)
for name, group in {"batch": batch, "jobs": jobs, "dlq": dlq, "webhooks": webhooks}.items():
    app.add_typer(group, name=name, no_args_is_help=True, epilog=EXIT_CODES_HELP)
for name, group in {
    "audit": audit_log,
    "keys": keys,
    "tenants": tenants,
    "models": models,
    "operators": operators,
    "quarantines": quarantines,
}.items():
    app.add_typer(group, name=name, no_args_is_help=True)
app.add_typer(topics, name="topics", no_args_is_help=True)
app.add_typer(database, name="database", no_args_is_help=True)
app.add_typer(scale, name="scale", no_args_is_help=True)


def main() -> None:
    """Entry point of the console script."""
    prepare_streams()
    app()


if __name__ == "__main__":
    main()
