"""Resolves Kafka's dependencies anew and rewrites jars.sha256: `python -m services.embedded.kafka.relock`.

Run by a maintainer after a change of KAFKA_VERSION; the difference is what a reviewer reads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from jgo.maven import MavenContext, PythonResolver

from services.embedded.kafka.jars import KAFKA_VERSION, LOCK, sha256

# slf4j-simple writes the broker's warnings to stderr, which the launcher sends to the log file.
_COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")


def main() -> None:
    """Download every jar of the broker's class path into a passing folder and write down its digest."""
    with tempfile.TemporaryDirectory() as folder:
        context = MavenContext(resolver=PythonResolver(), repo_cache=Path(folder), timeout=30)
        inputs, transitive = context.resolver.resolve([context.create_dependency(c) for c in _COORDINATES])
        paths = {dependency.artifact.resolve() for dependency in (*inputs, *transitive)}
        lines = sorted((path.relative_to(folder).as_posix(), sha256(path)) for path in paths)
        LOCK.write_text("".join(f"{digest}  {path}\n" for path, digest in lines), encoding="ascii")


if __name__ == "__main__":
    main()
