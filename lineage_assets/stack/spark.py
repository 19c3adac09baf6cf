"""The embedded engine: Spark as a Spark Connect server, in one local JVM, with Delta, Kafka and Avro on its class path.

Belongs here: its configuration, its token, its probe. Does not belong here: sessions and writes (lineage_assets/spark).
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shlex
import sys
from pathlib import Path

from lineage_assets.settings import Settings
from lineage_assets.stack import jars, java, ports
from lineage_assets.stack.errors import StackError
from lineage_assets.stack.part import Part
from lineage_assets.stack.process import write_private

# What Spark's own launcher opens, less the module jdk.incubator.vector, which a trimmed Java may lack.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)

# Most of a small job's CPU is the JVM's second compiler, at work on code that soon rests: here it waits for code that is
# ten times as hot. A start and nine Delta commits then take 42 s of CPU instead of 64, and long streams still get it.
_LATE_SECOND_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

# A corrupt length in an Avro payload must not make the server allocate it: beyond this a record is a dead letter.
_LARGEST_AVRO_VALUE = 16 * 1024 * 1024
_AVRO_LIMITS = tuple(
    f"-Dorg.apache.avro.limits.{kind}.maxLength={_LARGEST_AVRO_VALUE}"
    for kind in ("bytes", "string", "collectionItems")
)

_SITE = Path(__file__).parent / "site"
"""On the path of the server's Python processes, before all else."""

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.plan.name = org.apache.spark.util.SparkStringUtils
logger.plan.level = error
logger.consumer.name = org.apache.kafka.clients
logger.consumer.level = error
"""


def part(settings: Settings, chosen_ports: dict[str, int]) -> Part:
    folder = settings.stack_dir / "spark"
    token = _token(folder)
    # `localhost` by name: with a token, the client asks for TLS unless the host is called exactly this.
    shown = f"sc://localhost:{chosen_ports['spark_port']}"
    address = f"{shown}/;token={token}"
    return Part(
        name="spark",
        title="Spark Connect",
        argv=_argv(settings, folder),
        env=_environment(folder),
        folder=folder,
        ports=chosen_ports,
        jars="spark",
        address=address,
        shown=shown,
        prepare=lambda: prepare(settings, folder, chosen_ports["spark_port"], token),
        probe=lambda: probe(address, chosen_ports["spark_port"]),
        ready_timeout_s=180.0,
    )


def prepare(settings: Settings, folder: Path, port: int, token: str) -> None:
    """Writes the configuration, private because it holds the token."""
    for below in ("local", "warehouse", "work"):
        (folder / below).mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOG4J)
    properties = _properties(folder, port, token) | _object_store(settings)
    write_private(folder / "spark.conf", "".join(f"{name} {value}\n" for name, value in properties.items()))


def probe(address: str, port: int) -> str:
    """Runs `select 1` in a session of its own, once the port is open."""
    if not ports.answers(port):
        return "its port is not open yet"
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.session import SparkSession
    try:
        # Not through the builder: that would make this session the process's default one.
        session = SparkSession(address)
        try:
            return "" if session.sql("select 1").collect()[0][0] == 1 else "select 1 is not 1"
        finally:
            session.stop()
    except PySparkException as error:
        return str(error).splitlines()[0]


def _argv(settings: Settings, folder: Path) -> tuple[str, ...]:
    home = _spark_home()
    extra = os.environ.get("LINEAGE_SPARK_CLASSPATH", "")
    class_path = os.pathsep.join(filter(None, (f"{home / 'jars'}/*", jars.class_path("spark"), extra)))
    return (
        java.java(),
        "-Xms512m",
        f"-Xmx{settings.spark_memory}",
        "-XX:+UseParallelGC",
        *_LATE_SECOND_COMPILER,
        *java.common_options(),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
        "--enable-native-access=ALL-UNNAMED",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "--sun-misc-unsafe-memory-access=allow",
        *_AVRO_LIMITS,
        # Methods that Spark generates for a wide contract are beyond the size that the JVM compiles by default.
        "-XX:-DontCompileHugeMethods",
        "-Duser.timezone=UTC",
        f"-Djava.io.tmpdir={folder / 'local'}",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        *shlex.split(os.environ.get("LINEAGE_SPARK_JAVA_OPTIONS", "")),
        "-cp",
        class_path,
        "org.apache.spark.deploy.SparkSubmit",
        "--properties-file",
        str(folder / "spark.conf"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "spark-internal",
    )


def _environment(folder: Path) -> dict[str, str]:
    # An outer SPARK_REMOTE or master would turn this server into a client of another.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return env | {
        "SPARK_HOME": str(_spark_home()),
        "SPARK_LOCAL_IP": ports.HOST,
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_SITE), env.get("PYTHONPATH")))),
    }


def _properties(folder: Path, port: int, token: str) -> dict[str, str]:
    return {
        "spark.master": "local[*]",
        "spark.app.name": "lineage",
        "spark.connect.grpc.binding.address": ports.HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
        "spark.driver.host": ports.HOST,
        "spark.driver.bindAddress": ports.HOST,
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.default.parallelism": "4",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        # Every run opens a session, and Spark would keep a Python daemon for each until the server ends.
        "spark.python.daemon.module": "lineage_assets.stack.python_daemon",
        # One Delta log has a handful of files here: the default of 50 tasks to read it is all overhead, and so is a second.
        "spark.databricks.delta.snapshotPartitions": "1",
        # The rows that a bounded run keeps between its queries are freed when the collector meets their handle. Spark sees to
        # that every half hour; a slice of millions would fill the heap that a stream beside it needs for as long.
        "spark.cleaner.periodicGC.interval": "5min",
    }


def _object_store(settings: Settings) -> dict[str, str]:
    """Settings for a lake on S3. Raises StackError when the class path has no S3 client: the locked jars bring none."""
    if not settings.lake.startswith("s3://"):
        return {}
    if "hadoop-aws" not in os.environ.get("LINEAGE_SPARK_CLASSPATH", ""):
        raise StackError(
            f"the embedded Spark cannot reach {settings.lake}: its jars bring no S3 client",
            remedy="set LINEAGE_SPARK_CLASSPATH to hadoop-aws (of pyspark's Hadoop version) and what it needs, "
            "or SPARK_REMOTE to a Spark that has them",
        )
    known = {
        "AWS_ACCESS_KEY_ID": "spark.hadoop.fs.s3a.access.key",
        "AWS_SECRET_ACCESS_KEY": "spark.hadoop.fs.s3a.secret.key",
        "AWS_SESSION_TOKEN": "spark.hadoop.fs.s3a.session.token",
        "AWS_ENDPOINT_URL": "spark.hadoop.fs.s3a.endpoint",
        "AWS_REGION": "spark.hadoop.fs.s3a.endpoint.region",
    }
    given = {name.upper(): value.get_secret_value() for name, value in settings.storage_options.items()}
    return {option: given[name] for name, option in known.items() if name in given} | {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.delta.logStore.s3.impl": "io.delta.storage.S3SingleDriverLogStore",
    }


def _token(folder: Path) -> str:
    """The server's secret, made once and kept where only its owner reads it."""
    path = folder / "token"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_private(path, secrets.token_urlsafe(32))
    return path.read_text()


def _spark_home() -> Path:
    """The folder of the installed pyspark, found without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.origin:
        raise StackError("pyspark is not installed", remedy="run `make setup`")
    return Path(found.origin).parent
