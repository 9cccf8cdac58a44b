"""The load of a storm: connections on the collector's Unix socket, in a process of their own, each hook with its fate on record.

A connection waits for each answer before its next hook, as a runtime does. Who gets none, or a 503, does what the
forwarder and the plugins do: half of the connections write the delivery to the spool, half send it again until it is
answered. A hook without a delivery id (Claude Code's own http hooks) is sent once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from schemas.identity import new_delivery_id
from services.forwarder import protocol
from tests.chaos.agents import Agents, Hook

CONNECTIONS = 32
_TIMEOUT_S = protocol.TIMEOUT_MS / 1000
_AGAIN_S = 0.1
_FLUSH_S = 0.2


@dataclass(slots=True)
class Fate:
    """What became of one hook. `answer` is the status of the first try (0: none), `ms` how long that took, `at` its start
    (seconds, the machine's monotonic clock). `end` is answered, spooled, or lost (nobody tried again).
    """

    id: str
    connection: int
    runtime: str
    session: str
    hook: str
    at: float
    ms: float
    answer: int
    end: str
    named: bool


class Load:
    """A running generator. `hooks` in all, or without an end until `stop`; `rate` hooks a second over all connections."""

    def __init__(
        self, home: Path, out: Path, *, hooks: int = 0, rate: float = 250, seed: int = 1, anonymous: float = 0
    ) -> None:
        self._out = out
        command = [sys.executable, "-m", "tests.chaos.load", "--home", str(home), "--out", str(out)]
        command += ["--hooks", str(hooks), "--rate", str(rate), "--seed", str(seed), "--anonymous", str(anonymous)]
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def sent(self) -> int:
        """Hooks whose fate is known, up to a fifth of a second ago."""
        return self._out.read_bytes().count(b"\n") if self._out.exists() else 0

    def running(self) -> bool:
        """Whether there is more to come."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Let each connection end its hook, then return."""
        if self.running():
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)

    def fates(self, timeout_s: float) -> list[Fate]:
        """All hooks once the generator has ended. Raises what subprocess does where it does not end."""
        self._process.wait(timeout=timeout_s)
        if self._process.returncode:
            raise RuntimeError(f"the load generator ended with {self._process.returncode}")
        return [Fate(**orjson.loads(line)) for line in self._out.read_bytes().splitlines()]

    def kill(self) -> None:
        """End it in any case."""
        if self.running():
            self._process.kill()
            self._process.wait()


class _Connection:
    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, hook: Hook, delivery: str | None) -> int:
        """The answer's status, 0 where there was none in time."""
        head = f"POST /hooks/{hook.runtime} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(hook.body)}\r\n"
        if delivery:
            head += f"{protocol.HEADER_DELIVERY}: {delivery}\r\n"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if self._streams is None:
                    self._streams = await asyncio.open_unix_connection(self._socket)
                reader, writer = self._streams
                writer.write(head.encode() + b"\r\n" + hook.body)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                await reader.readexactly(length)
                return int(answer.split(None, 2)[1])
        except (OSError, TimeoutError, EOFError):
            if self._streams:
                self._streams[1].close()
            self._streams = None
            return 0


class _Generator:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._spool = Path(options.home) / protocol.SPOOL_FOLDER
        self._socket = str(Path(options.home) / protocol.SOCKET_NAME)
        self._agents = Agents()
        self._stop = False
        self._fates: list[Fate] = []

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end)
        with open(self._options.out, "ab") as out:
            flushing = asyncio.create_task(self._flush(out))
            await asyncio.gather(*(self._connect(number) for number in range(CONNECTIONS)))
            flushing.cancel()
            self._write(out)

    def _end(self) -> None:
        self._stop = True

    async def _connect(self, number: int) -> None:
        hooks = self._agents.hooks(self._options.seed, number)
        named = number >= CONNECTIONS * self._options.anonymous
        connection = _Connection(self._socket)
        left = self._options.hooks // CONNECTIONS + (number < self._options.hooks % CONNECTIONS)
        every_s = CONNECTIONS / self._options.rate
        due = time.monotonic() + number / self._options.rate
        while (left > 0 or not self._options.hooks) and not self._stop:
            left -= 1
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            # Who was held up goes on at its pace, it does not catch up.
            due = max(due, time.monotonic() - every_s) + every_s
            await self._send(connection, number, next(hooks), named)

    async def _send(self, connection: _Connection, number: int, hook: Hook, named: bool) -> None:
        delivery = new_delivery_id()
        began = time.monotonic()
        status = first = await connection.post(hook, delivery if named else None)
        ms = (time.monotonic() - began) * 1000
        while named and number % 2 and status != 200 and not self._stop:
            await asyncio.sleep(_AGAIN_S)
            status = await connection.post(hook, delivery)
        end = "answered" if status == 200 else "lost"
        if named and status != 200:
            await asyncio.to_thread(self._to_spool, hook, delivery)
            end = "spooled"
        self._fates.append(
            Fate(delivery, number, hook.runtime, hook.session, hook.name, began, round(ms, 3), first, end, named)
        )

    def _to_spool(self, hook: Hook, delivery: str) -> None:
        folder = self._spool / hook.runtime
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = folder / f"{protocol.SPOOL_TEMPORARY_PREFIX}{delivery}"
        temporary.write_bytes(f"{protocol.SPOOL_MAGIC} pid={os.getpid()}\n".encode() + hook.body)
        temporary.replace(folder / delivery)

    async def _flush(self, out) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            self._write(out)

    def _write(self, out) -> None:
        fates, self._fates = self._fates, []
        out.write(b"".join(orjson.dumps(asdict(fate)) + b"\n" for fate in fates))
        out.flush()


def latencies(fates: Iterator[Fate]) -> tuple[float, float]:
    """(P50, P95) in ms of the first tries that were answered; (nan, nan) of none."""
    times = sorted(fate.ms for fate in fates if fate.answer)
    if not times:
        return float("nan"), float("nan")
    return times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.95))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--hooks", type=int, default=0)
    parser.add_argument("--rate", type=float, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--anonymous", type=float, default=0, help="share of the connections that send no delivery id")
    asyncio.run(_Generator(parser.parse_args()).run())


if __name__ == "__main__":
    main()
