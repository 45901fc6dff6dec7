"""What `import pyspark_aerobee` does for a driver: the workers' Python, and readable errors."""

import os
import shutil
import sys
import warnings
from types import TracebackType
from typing import Final

_OWN: Final = "aerobee.pipeline."
# Both are off by default, and change nothing for other sources.
SETTINGS: Final = {
    # A Python source gets the filters of a query only with this one.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Over TCP each task waits for 40 ms, the time by which Linux delays an acknowledgement: Spark
    # writes to its workers in small pieces, and one that follows another waits for it.
    "spark.python.unix.domain.socket.enabled": "true",
}


def use_this_python() -> None:
    """Spark starts `python3` of the PATH for its workers, whatever Python the driver runs: in a
    venv that is not activated one without our package. Warns when a session exists already."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        if not _is_this_python("python3"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif context.master.startswith("local") and not _is_this_python(context.pythonExec):
        warnings.warn(
            f"the workers of this Spark session run {context.pythonExec}, the driver runs "
            f"{sys.executable}: import pyspark_aerobee before the session is made, or set "
            "PYSPARK_PYTHON",
            stacklevel=2,
        )


def set_up_sessions() -> None:
    """Sessions made after this have the settings under which this source reads fastest."""
    words = [f"--conf {name}={value}" for name, value in SETTINGS.items()]
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", " ".join((*words, "pyspark-shell")))


def _is_this_python(command: str) -> bool:
    """Whether the command is of this environment: a venv's pythons lie side by side."""
    found = shutil.which(command)
    return found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)


def own_sentence(error: BaseException) -> str | None:
    """What our own code says is wrong: the error itself, or a line of what Spark made of it."""
    if type(error).__module__.startswith(_OWN):
        return str(error)
    for line in str(error).splitlines():
        name, found, text = line.strip().partition(": ")
        if found and name.startswith(_OWN):
            return text
    return None


def end_with_our_sentence() -> None:
    """Makes our sentence the last line of a traceback that Spark wrapped it in."""
    usual = sys.excepthook
    if getattr(usual, "__module__", None) == __name__:
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        usual(kind, error, traceback)
        if not kind.__module__.startswith(_OWN) and (text := own_sentence(error)):
            print(f"aerobee: {text}", file=sys.stderr)

    sys.excepthook = hook
