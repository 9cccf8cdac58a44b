"""The server program: the engine of the chdb-core wheel, listening by HTTP.

`chdb.connect()` has no listener. The wheel's older entry `_chdb.query` runs ClickHouse's LocalServer, which
has: one statement opens the listener, a second one sleeps and so keeps the server up, and ending that one ends
the server in order.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import queue
import shutil
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from types import ModuleType

from schemas.errors import UserError
from services.embedded.clickhouse.statement import request

_HERE = Path(__file__).parent
_RTLD_DEEPBIND = 0x8
_STOP_S = 20.0

_LISTEN = "SYSTEM START LISTEN HTTP"
_STAY = "SELECT sleepEachRow(0.2) FROM system.numbers SETTINGS max_block_size = 1, max_execution_time = 0 FORMAT Null"
_END = "KILL QUERY WHERE interface = 'Local' ASYNC"


def serve(state_dir: Path, port: int, password: str) -> int:
    """Run the server until SIGTERM or SIGINT, then end it in order. Once a process: the engine opens only once.

    Returns an exit code: 69 if the engine has ended by itself, after its own words on stderr. Raises UserError if it
    cannot be run at all.
    """
    data, config = state_dir / "data", state_dir / "config"
    _prepare_data(data)
    _refuse_if_open(data)
    config.mkdir(mode=0o700, exist_ok=True)
    for name in ("config.xml", "users.xml"):
        shutil.copyfile(_HERE / name, config / name)
    os.environ["AGENTTRACE_CLICKHOUSE_PORT"] = str(port)
    os.environ["AGENTTRACE_CLICKHOUSE_PASSWORD_SHA256"] = hashlib.sha256(password.encode()).hexdigest()
    # LocalServer takes ./config.xml, and has no option for another place.
    os.chdir(config)

    # A signal handler may interrupt a get and call put: SimpleQueue is made for that, an Event is not.
    happened: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: happened.put(None))
    engine = threading.Thread(target=_run_engine, args=(_load_engine(), data, happened), daemon=True)
    engine.start()
    failure = happened.get()
    if failure is not None:
        sys.stderr.write(f"{failure}\n")
        return os.EX_UNAVAILABLE
    print("stopping; a code 394 below is the end of the statement that kept the server up", flush=True)
    _end(engine, port, password)
    return os.EX_OK


def _run_engine(engine: ModuleType, data: Path, happened: queue.SimpleQueue[str | None]) -> None:
    try:
        result = engine.query(f"{_LISTEN}; {_STAY}", "TSV", path=str(data))
        # What a statement failed by is on stderr already, and not in the result.
        happened.put(result.error_message() if result.has_error() else "")
    except Exception as error:
        happened.put(str(error) or type(error).__name__)


def _end(engine: threading.Thread, port: int, password: str) -> None:
    deadline = time.monotonic() + _STOP_S
    while engine.is_alive() and time.monotonic() < deadline:
        try:
            request(port, password, _END, timeout_s=2)
        except OSError:
            pass  # not listening yet, or no more
        engine.join(0.5)


def _load_engine() -> ModuleType:
    """The extension alone: `import chdb` opens and closes an engine, which leaves pools shut that a server needs."""
    spec = importlib.util.find_spec("chdb")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the wheel chdb-core is missing; install agenttrace[embedded], or set CLICKHOUSE_DSN")
    path = str(Path(next(iter(spec.submodule_search_locations))) / "_chdb.abi3.so")
    loader = importlib.machinery.ExtensionFileLoader("chdb._chdb", path)
    try:
        if sys.platform == "linux":
            # As chdb does: the engine's operator new must be its own, not that of a libstdc++ loaded earlier.
            ctypes.CDLL(path, mode=sys.getdlopenflags() | _RTLD_DEEPBIND)
        module_spec = importlib.util.spec_from_loader("chdb._chdb", loader, origin=path)
        assert module_spec is not None
        module = importlib.util.module_from_spec(module_spec)
        loader.exec_module(module)
    except (OSError, ImportError) as error:
        raise UserError(f"cannot load the ClickHouse engine: {error}; install chdb-core again") from None
    return module


def _prepare_data(data: Path) -> None:
    """Databases `default` and `system` as files.

    Left to itself LocalServer makes no `default` and keeps `system` in memory; and if the folder has no metadata
    at the first start, that run has no background merges.
    """
    metadata = data / "metadata"
    try:
        metadata.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("default", "system"):
            file = metadata / f"{name}.sql"
            if not file.exists():
                draft = file.with_suffix(".draft")
                draft.write_text(f"ATTACH DATABASE _ UUID '{uuid.uuid4()}'\nENGINE = Atomic\n", encoding="ascii")
                draft.replace(file)
    except OSError as error:
        raise UserError(
            f"cannot prepare {metadata}: {error.strerror}; mend that folder or choose another one",
            exit_code=os.EX_CANTCREAT,
        ) from None


def _refuse_if_open(data: Path) -> None:
    """Say who has the folder; the engine would only say code 76. It locks its file `status`: `PID: N`, …"""
    try:
        with (data / "status").open() as status:
            try:
                fcntl.flock(status, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = status.readline().removeprefix("PID:").strip() or "unknown"
                raise UserError(
                    f"another ClickHouse has {data} open (pid {holder}); stop that one or choose another folder",
                    exit_code=os.EX_TEMPFAIL,
                ) from None
    except FileNotFoundError:
        return


def main() -> None:
    """Read arguments, serve, and print a failure as one line. Exit codes as sysexits."""
    parser = argparse.ArgumentParser(description="Run ClickHouse on the loopback until SIGTERM.")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--password-file", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        password = arguments.password_file.read_text(encoding="ascii").strip()
        code = serve(arguments.state_dir.resolve(), arguments.port, password)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: its tear-down would meet the engine's threads. What was acknowledged is in the files by now.
    os._exit(code)


if __name__ == "__main__":
    main()
