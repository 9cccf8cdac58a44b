"""The jars of Apache Kafka, fetched once and accepted only if their SHA-256 is the committed one.

`jars.sha256` is the lock: `sha256sum` format, paths in Maven repository layout; relock.py writes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import UserError

KAFKA_VERSION = "4.3.1"

LOCK = Path(__file__).with_name("jars.sha256")
_DOWNLOADS = 6
_TRIES = 3
_OWN_BROKER = "or set KAFKA_BOOTSTRAP to a broker of your own"


def cache_folder() -> Path:
    """Where the jars are kept: in the virtual environment if that can be written, else in the user's cache."""
    name = f"kafka-{KAFKA_VERSION}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if sys.prefix != sys.base_prefix:
        shared = Path(sys.prefix) / "share" / "agenttrace" / name
        if shared.is_dir() or os.access(sys.prefix, os.W_OK):
            return shared
    return cache / "agenttrace" / name


def ensure_jars(folder: Path | None = None) -> list[Path]:
    """The class path of the broker, every file checked against the committed list; what is missing is downloaded first.

    Raises UserError: no network, folder not writable, a file that is not the committed one. Offline once
    complete.
    """
    folder = folder or cache_folder()
    wanted = {folder / path: digest for path, digest in _read_lock().items()}
    missing = [jar for jar in wanted if not jar.is_file()]
    if missing:
        try:
            with _alone(folder):
                _download(folder, {jar: wanted[jar] for jar in missing if not jar.is_file()})
        except OSError as error:
            raise UserError(
                f"cannot keep the jars of Apache Kafka in {folder}: {error.strerror or error}; "
                f"mend that folder, {_OWN_BROKER}",
                exit_code=os.EX_CANTCREAT,
            ) from None
    for jar, digest in wanted.items():
        if sha256(jar) != digest:
            raise UserError(
                f"{jar} is not the file that was published: its SHA-256 differs from {LOCK.name}; "
                f"delete {folder} and start again",
                exit_code=os.EX_DATAERR,
            )
    return sorted(wanted)


def _read_lock() -> dict[str, str]:
    lines = (line.split(maxsplit=1) for line in LOCK.read_text(encoding="ascii").splitlines())
    return {path: digest for digest, path in lines}


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two first starts at once: the second waits, and then finds what the first has fetched."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(folder: Path, wanted: dict[Path, str]) -> None:
    """Fetch into a draft folder; a file moves to its place only once its digest is right."""
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix=".draft-") as draft,
        ThreadPoolExecutor(_DOWNLOADS) as pool,
    ):
        drafts = pool.map(lambda jar: _fetch(Path(draft), jar.relative_to(folder)), wanted)
        for (jar, digest), fetched in zip(wanted.items(), drafts, strict=True):
            if (found := sha256(fetched)) != digest:
                raise UserError(
                    f"refused {jar.name}: the download has SHA-256 {found}, {LOCK.name} says {digest}; "
                    f"look at the proxy or mirror it came from, {_OWN_BROKER}",
                    exit_code=os.EX_DATAERR,
                )
            jar.parent.mkdir(parents=True, exist_ok=True)
            fetched.replace(jar)


def _fetch(repository: Path, path: Path) -> Path:
    # jgo and requests take 0.2 s to import, which every start but the first can spare.
    import requests
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext, PythonResolver

    group, artifact, version = ".".join(path.parts[:-3]), path.parts[-3], path.parts[-2]
    context = MavenContext(
        resolver=PythonResolver(),
        repo_cache=repository,
        # A mirror that the user has set for jgo holds here too: whatever it serves, the digest decides.
        remote_repos=GlobalSettings.load().repositories or None,
        timeout=30,
    )
    for attempt in range(_TRIES):
        try:
            return context.project(group, artifact).at_version(version).artifact().resolve()
        except (requests.RequestException, RuntimeError) as error:
            (repository / path).unlink(missing_ok=True)
            if attempt == _TRIES - 1:
                raise UserError(
                    f"cannot download {path.name} of Apache Kafka {KAFKA_VERSION} ({type(error).__name__}); "
                    f"the first start needs the network once: check it and start again, {_OWN_BROKER}",
                    exit_code=os.EX_UNAVAILABLE,
                ) from None
    raise AssertionError("unreachable")
