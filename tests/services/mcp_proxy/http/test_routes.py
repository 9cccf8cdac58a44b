"""Which upstream a path leads to, what the proxy answers itself, and which routes and addresses are refused."""

from __future__ import annotations

import json

import pytest

from schemas.errors import UserError
from services.mcp_proxy.http.routes import Routes, own_authorities, parse_route
from services.mcp_proxy.http.server import _listen
from tests.services.mcp_proxy.http.conftest import World

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("url", "asked", "target"),
    [
        ("http://up/mcp", b"/mcp/a", b"/mcp"),
        ("http://up/mcp/", b"/mcp/a", b"/mcp/"),
        ("http://up", b"/mcp/a", b"/"),
        ("http://up/mcp", b"/mcp/a/", b"/mcp/"),
        ("http://up/mcp/", b"/mcp/a/x/y?z", b"/mcp/x/y?z"),
        ("http://up", b"/mcp/a//x", b"//x"),
        ("http://up/mcp?key=1", b"/mcp/a", b"/mcp?key=1"),
        ("http://up/mcp?key=1", b"/mcp/a?b=2&c", b"/mcp?key=1&b=2&c"),
        ("http://up/mcp", b"/mcp/a?", b"/mcp?"),
        ("http://up/mcp", b"/mcp/a/..%2f?q=/mcp/b", b"/mcp/..%2f?q=/mcp/b"),
        ("http://up/mcp?key=1", b"/.well-known/oauth-protected-resource/mcp/a", b"/.well-known/oauth-protected-resource/mcp"),
        ("http://up", b"/.well-known/oauth-authorization-server/mcp/a", b"/.well-known/oauth-authorization-server"),
        ("http://up/mcp", b"/mcp/A", None),
        ("http://up/mcp", b"/mcp/ab", None),
        ("http://up/mcp", b"/mcp", None),
        ("http://up/mcp", b"/x/mcp/a", None),
        ("http://up/mcp", b"/mcp/%61", None),
        ("http://up/mcp", b"*", None),
    ],
)  # fmt: skip
def test_the_path_of_a_route_and_below_lead_to_its_upstream(url: str, asked: bytes, target: bytes | None) -> None:
    found = Routes([parse_route(f"a={url}")]).find(asked)
    assert (found and found.target) == (target and target.removesuffix(b"?") if asked.endswith(b"?") else target)


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ("github", "NAME=URL"),
        ("=http://x", "NAME=URL"),
        ("a b=http://x", "NAME=URL"),
        ("a=ftp://x/", "--route a: give an http:// or https:// URL"),
        ("a=http://", "--route a: give an http"),
        ("a=x.example/mcp", "--route a: give an http"),
        ("a=http://x:port/", "--route a: the URL cannot be read"),
        ("a=http://x:70000/", "--route a: the URL cannot be read"),
        ("a=http://[::1/", "--route a: the URL cannot be read"),
        ("a=http://x/a b", "--route a: give an http"),
        ("a=http://x/\r\nX: y", "--route a: give an http"),
        ("a=http://us\u00e9.example/", "--route a: give an http"),
        ("a=https://user:hunter2@x/", "--route a: no user or password"),
    ],
)
def test_a_route_that_cannot_be_is_told_by_name_and_shows_no_password(route: str, why: str) -> None:
    with pytest.raises(UserError, match="--route") as caught:
        parse_route(route)
    assert why in str(caught.value) and "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_is_given_once() -> None:
    with pytest.raises(UserError, match="--route a: this name is given twice"):
        Routes([parse_route("a=http://x"), parse_route("a=http://y")])


def test_the_authority_of_an_upstream_leaves_out_the_schemes_own_port() -> None:
    urls = ["http://x:80/", "https://x:443", "https://X:80/", "http://[::1]:8000/", "http://[::1]/"]
    authorities = [parse_route(f"a={url}").authority for url in urls]
    assert authorities == [b"x", b"x", b"x:80", b"[::1]:8000", b"[::1]"]


def test_what_clients_may_call_the_proxy() -> None:
    assert own_authorities("127.0.0.1", 8790) == {b"127.0.0.1:8790", b"localhost:8790", b"[::1]:8790"}
    assert own_authorities("192.0.2.1", 80) == {b"192.0.2.1:80", b"192.0.2.1"}


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("0.0.0.0:0", "--allow-remote"),
        ("[::]:0", "--allow-remote"),
        ("8790", "HOST:PORT"),
        ("127.0.0.1:x", "HOST:PORT"),
        ("127.0.0.1:70000", "HOST:PORT"),
        ("name.invalid:1", "use an address of this machine"),
        ("192.0.2.1:0", "--allow-remote"),
    ],
)
def test_only_loopback_is_listened_on_unless_asked_for(where: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        _listen(where, allow_remote=False)


def test_any_address_is_listened_on_if_asked_for() -> None:
    with _listen("0.0.0.0:0", allow_remote=True) as listener, pytest.raises(UserError, match="choose another port"):
        _listen(f"127.0.0.1:{listener.getsockname()[1]}", allow_remote=False)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_root_lists_the_routes(world: World, method: str) -> None:
    await world.relay("a=http://up.example/mcp", "b=http://up.example/mcp")
    client = await world.connect()
    client.send(f"{method} / HTTP/1.1\r\nHost: LocalHost:{world.port}\r\n\r\n".encode())
    assert (await client.head()).startswith(b"HTTP/1.1 200 OK\r\n")
    body = await client.rest()
    if method == "GET":
        routes = json.loads(body)["routes"]
        assert routes == {name: {"path": f"/mcp/{name}", "trouble": None} for name in ("a", "b")}
    else:
        assert body == b""


@pytest.mark.parametrize("target", ["/mcp/c", "/mcp", "/favicon.ico", "http://other.example/mcp/a"])
async def test_an_unknown_route_is_a_404_that_names_the_known_ones(world: World, target: str) -> None:
    await world.relay("a=http://up.example/mcp", "b=http://up.example/mcp")
    client = await world.connect()
    client.send(f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1:{world.port}\r\nContent-Length: 90000000\r\n\r\n".encode())
    head, body = await client.answer()
    assert head.startswith(b"HTTP/1.1 404 ") and json.loads(body)["error"].endswith("routes: /mcp/a, /mcp/b")
    assert world.records == []


@pytest.mark.parametrize("target", ["/", "/mcp/c"])
@pytest.mark.parametrize(
    "headers",
    [
        "Host: evil.example:PORT",
        "Host: evil.example",
        "Host: localhost:PORT\r\nOrigin: https://evil.example",
        "Host: localhost:PORT\r\nOrigin: null",
        "Host: localhost:PORT\r\nOrigin: https://localhost:PORT",
    ],
)
async def test_pages_of_other_sites_are_told_nothing(world: World, target: str, headers: str) -> None:
    await world.relay("a=http://up.example/mcp")
    client = await world.connect()
    client.send(f"GET {target} HTTP/1.1\r\n{headers}\r\n\r\n".replace("PORT", str(world.port)).encode())
    head, body = await client.answer()
    assert head.startswith(b"HTTP/1.1 403 ") and b"/mcp" not in body
