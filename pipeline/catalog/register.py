"""Puts the catalog of topics into a Spark session: compiled there by Spark's own compiler."""

import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.options import CONNECTION, Options

CLASS: Final = "aerobee.TopicCatalog"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_SOURCE: Final = Path(__file__).with_name("TopicCatalog.java")
_JAVA: Final = 8  # the newest class files that Janino writes; newer JVMs run them


def catalog(spark: Any, namesrv: str, *, name: str = "aerobee", **options: str) -> None:
    """Make ``SELECT ... FROM aerobee.`orders` `` and `SHOW TABLES IN aerobee` work.

    Args:
        spark: the session. A Spark Connect server must have the jar that `aerobee pipeline
            catalog-jar` makes.
        namesrv: `host:port` of the name server.
        name: of the catalog.
        options: others of the connection, such as `accessKey`, `secretKey`, `useTLS`, `timeoutMs`.
    """
    given = {"namesrv": namesrv} | {key: str(value) for key, value in options.items()}
    Options(CONNECTION, given)  # an error here, not in each query
    if hasattr(spark, "_jsparkSession"):
        _load(spark)
    prefix = f"spark.sql.catalog.{name}"
    for key in spark.conf.getAll:
        if key.startswith(f"{prefix}."):
            spark.conf.unset(key)
    spark.conf.set(prefix, CLASS)
    for key, value in given.items():
        spark.conf.set(f"{prefix}.{key}", value)
    spark.conf.set(PUSHDOWN, "true")


def _load(spark: Any) -> None:
    """Makes the driver's JVM find the class, once."""
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    resource = CLASS.replace(".", "/") + ".class"
    if loader.getResource(resource) is not None:
        return
    if not hasattr(loader, "addURL"):
        raise OptionError(
            "this session's class loader accepts no classes; make a jar with `aerobee pipeline "
            "catalog-jar` and start Spark with --jars"
        )
    folder = spark.sparkContext._temp_dir  # Spark removes it when the JVM ends
    with tempfile.NamedTemporaryFile(suffix=".jar", dir=folder, delete=False) as file:
        file.write(jar(spark))
    loader.addURL(spark._jvm.java.io.File(file.name).toURI().toURL())


def jar(spark: Any) -> bytes:
    """The catalog as a jar, compiled against the Spark of the session."""
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.setSourceVersion(_JAVA)
    compiler.setTargetVersion(_JAVA)
    compiler.cook(_SOURCE.read_text())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, code in sorted(dict(compiler.getBytecodes()).items()):
            entry = zipfile.ZipInfo(name.replace(".", "/") + ".class")  # always the same bytes
            archive.writestr(entry, bytes(code))
    return packed.getvalue()
