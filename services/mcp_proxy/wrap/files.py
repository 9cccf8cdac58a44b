"""Reading and replacing a configuration file without ever leaving half of one, and the record of what it was."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import UserError

MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A file as it was read. `path` has no symbolic links left."""

    path: Path
    data: bytes
    status: os.stat_result

    @property
    def text(self) -> str:
        """The whole as text, a byte order mark too. Raises UserError when it is not UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise UserError(f"{self.path}:{line}: not UTF-8 text (byte {error.start})", exit_code=65) from None


@dataclass(frozen=True, slots=True)
class Record:
    """What a wrap replaced: the bytes before, the hash of the bytes after, and where its routes lead (name → origin)."""

    original: bytes
    wrapped_sha256: str
    routes: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Snapshot:
    """The file at the end of all links. Raises UserError."""
    try:
        real = path.resolve(strict=True)
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path}: not a file; name the client's configuration file", exit_code=66)
            if status.st_size > MAX_BYTES:
                size = f"{status.st_size >> 20} MiB"
                raise UserError(f"{path}: {size}, more than the {MAX_BYTES >> 20} MiB of a configuration", exit_code=65)
            with open(descriptor, "rb", closefd=False) as file:
                return Snapshot(real, file.read(), status)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file", exit_code=66) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = getattr(error, "strerror", None) or "its links lead in a circle"
        raise UserError(f"{path}: cannot be read ({why})", exit_code=66) from None


def require_writable(snapshot: Snapshot) -> None:
    """Raises UserError for a read-only file, also for the superuser, whom nothing else would stop."""
    if not snapshot.status.st_mode & 0o222 or not os.access(snapshot.path, os.W_OK):
        raise UserError(f"{snapshot.path}: read-only; nothing was changed. Make it writable first", exit_code=77)


def replace(snapshot: Snapshot, data: bytes) -> None:
    """The file gets these bytes in one step, its mode and owner kept. Raises UserError, the file untouched, also when
    it is not what was read any more.
    """
    status = snapshot.status
    try:
        with _prepared(snapshot.path, data, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)) as new:
            if read(snapshot.path).data != snapshot.data:
                raise UserError(f"{snapshot.path}: changed meanwhile; nothing was written. Run it again", exit_code=75)
            new.replace(snapshot.path)
            _sync(snapshot.path.parent)
    except OSError as error:
        why = f"cannot be written ({error.strerror}: {snapshot.path.parent})"
        raise UserError(f"{snapshot.path}: {why}; nothing was changed", exit_code=77) from None


class Records:
    """The records below <home>/wrapped, a file each, readable by their owner only: originals may hold secrets."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "wrapped"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One wrap at a time. Raises UserError."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(f"{self._folder}: cannot be written ({error.strerror})", exit_code=73) from None
        try:
            yield
        finally:
            os.close(descriptor)

    def get(self, path: Path) -> Record | None:
        """What is known of this file. Raises UserError for a record that is damaged."""
        return self._read(self._file(path))

    def routes(self, apart_from: Path) -> dict[str, str]:
        """The routes of every other file: one proxy serves them all."""
        own = self._file(apart_from)
        try:
            others = sorted(file for file in self._folder.glob("*.json") if file != own)
        except OSError:
            return {}
        return {name: url for file in others for name, url in getattr(self._read(file), "routes", {}).items()}

    def put(self, path: Path, record: Record) -> None:
        """Keep it; it is on disk when this returns. Raises UserError."""
        content = {
            "path": os.fsencode(path).decode(errors="replace"),
            "original": base64.b64encode(record.original).decode(),
            "wrapped_sha256": record.wrapped_sha256,
            "routes": record.routes,
        }
        file = self._file(path)
        try:
            with _prepared(file, json.dumps(content).encode(), 0o600, None) as new:
                new.replace(file)
                _sync(file.parent)
        except OSError as error:
            raise UserError(
                f"{file}: cannot be written ({error.strerror}); nothing was changed", exit_code=73
            ) from None

    def drop(self, path: Path) -> None:
        """Forget it."""
        with contextlib.suppress(OSError):
            self._file(path).unlink(missing_ok=True)

    def _file(self, path: Path) -> Path:
        return self._folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"

    def _read(self, file: Path) -> Record | None:
        try:
            content = json.loads(file.read_bytes())
            original = base64.b64decode(content["original"], validate=True)
            return Record(
                original, str(content["wrapped_sha256"]), {str(k): str(v) for k, v in content["routes"].items()}
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"this record of a wrap cannot be read ({type(error).__name__}); move it away to go on without it"
            raise UserError(f"{file}: {why}", exit_code=65) from None


@contextlib.contextmanager
def _prepared(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None) -> Iterator[Path]:
    """A file with these bytes beside `path`, on disk; gone afterwards unless it was moved."""
    prefix = f".{path.name}.agenttrace-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        left.unlink(missing_ok=True)  # of a run that was killed
    descriptor, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
    new = Path(name)
    try:
        with open(descriptor, "wb") as file:
            status = os.fstat(descriptor)
            if owner is not None and owner != (status.st_uid, status.st_gid):
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        yield new
    finally:
        new.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(data: bytes) -> str:
    """Hexadecimal."""
    return hashlib.sha256(data).hexdigest()
