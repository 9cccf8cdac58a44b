"""Only the committed files become the broker's class path, whoever serves them; a complete cache needs no network."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from schemas.errors import UserError
from services.embedded.host import free_port
from services.embedded.kafka import jars

A, B = "org/example/a-b/1.0/a-b-1.0.jar", "org/example/c/2.1/c-2.1.jar"


class Repository:
    """A Maven repository on the loopback; `files` is what it serves, `asked` how often each path was fetched."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {A: b"jar a", B: b"jar b"}
        self.asked: Counter[str] = Counter()
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.removeprefix("/")
                repository.asked[path] += 1
                content = repository.files.get(path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A repository with two jars, a lock file that names both, and the user's jgo settings pointing to it."""
    repository = Repository()
    lock = tmp_path / "jars.sha256"
    lock.write_text(
        "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in repository.files.items())
    )
    monkeypatch.setattr(jars, "LOCK", lock)
    point_jgo_to(f"http://127.0.0.1:{repository.server.server_port}", tmp_path, monkeypatch)
    thread = threading.Thread(target=repository.server.serve_forever, args=(0.02,))
    thread.start()
    yield repository
    repository.server.shutdown()
    thread.join()
    repository.server.server_close()


def point_jgo_to(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "jgo.conf"
    settings.write_text(f"[repositories]\nhere = {url}\n")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.jar")}


@pytest.mark.unit
def test_jars_are_fetched_once_and_then_need_no_network(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    assert jars.ensure_jars(cache) == [cache / A, cache / B]
    assert {path: repository.asked[path] for path in (A, B)} == {A: 1, B: 1}

    point_jgo_to(f"http://127.0.0.1:{free_port()}", tmp_path, monkeypatch)
    assert jars.ensure_jars(cache) == [cache / A, cache / B]


@pytest.mark.unit
def test_two_first_starts_at_once_fetch_once(repository: Repository, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(jars.ensure_jars, [tmp_path / "cache"] * 2))
    assert both[0] == both[1]
    assert {path: repository.asked[path] for path in (A, B)} == {A: 1, B: 1}


@pytest.mark.unit
def test_a_download_that_is_not_the_committed_file_is_refused_and_not_kept(
    repository: Repository, tmp_path: Path
) -> None:
    repository.files[B] = b"something else"
    with pytest.raises(UserError, match=r"refused c-2\.1\.jar: the download has SHA-256 [0-9a-f]{64}") as caught:
        jars.ensure_jars(tmp_path / "cache")
    assert caught.value.exit_code == 65
    assert B not in files_of(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob(".draft-*"))


@pytest.mark.unit
def test_a_cached_jar_that_was_changed_is_refused(repository: Repository, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    jars.ensure_jars(cache)
    (cache / A).write_bytes(b"tampered with")
    with pytest.raises(UserError, match=rf"{A} is not the file that was published.*delete {cache}"):
        jars.ensure_jars(cache)


@pytest.mark.unit
def test_no_network_is_one_line_that_says_what_to_do(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_jgo_to(f"http://127.0.0.1:{free_port()}", tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"needs the network once.*KAFKA_BOOTSTRAP") as caught:
        jars.ensure_jars(tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 69


@pytest.mark.unit
def test_a_cache_folder_that_cannot_be_made_is_named(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot keep the jars .*/file/cache: Not a directory"):
        jars.ensure_jars(tmp_path / "file" / "cache")


@pytest.mark.contract
def test_the_committed_list_is_a_class_path_of_this_kafka() -> None:
    lines = jars.LOCK.read_text().splitlines()
    assert lines == sorted(lines, key=lambda line: line.split()[1])
    assert all(re.fullmatch(r"[0-9a-f]{64}  ([\w.-]+/)+([\w.-]+)/([\w.-]+)/\2-\3\.jar", line) for line in lines)
    paths = [line.split()[1] for line in lines]
    version = jars.KAFKA_VERSION
    assert f"org/apache/kafka/kafka_2.13/{version}/kafka_2.13-{version}.jar" in paths
    # Two versions of one jar on a class path are a broker that fails at some later call.
    assert len({path.rsplit("/", 2)[0] for path in paths}) == len(paths)
