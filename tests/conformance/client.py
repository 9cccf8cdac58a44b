"""The MCP client that the official suite tests in its `client` mode: the suite is the server, and starts this with its URL.

With AGENTTRACE_CONFORMANCE_VIA=proxy it starts an `agenttrace proxy http` of its own and reaches the suite's server through
it. How far the proxy stands in for the server is AGENTTRACE_CONFORMANCE_NAME's to say:

- `proxy`: the client knows the proxy's URL only, as after `agenttrace proxy wrap`.
- `server`: the client knows the server's URL and every MCP request is sent to the proxy, as where the name leads to it.
  OAuth needs this: a token belongs to the URL of the resource (RFC 8707), which the proxy's URL is not.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import types
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl

from tests.conformance.running import http_proxy

_MODERN = "2026-07-28"
_REDIRECT = AnyUrl("http://localhost:3000/callback")
_SAMPLES: dict[str, Any] = {"integer": 0, "number": 0, "boolean": False, "object": {}, "array": [], "null": None}
_PER_TOOL = {"add_numbers": {"a": 5, "b": 3}}


class Through(httpx2.AsyncHTTPTransport):
    """Sends the requests for one URL to another one, and leaves all of their headers, `Host` too, as they were."""

    def __init__(self, url: str, proxy: str) -> None:
        super().__init__()
        self._url, self._proxy = httpx2.URL(url), httpx2.URL(proxy)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """As of httpx2; only the way changes."""
        if request.url.copy_with(query=None) == self._url:
            request.url = self._proxy.copy_with(query=request.url.query or None)
        return await super().handle_async_request(request)


class Memory(TokenStorage):
    """Tokens of one run."""

    def __init__(self, info: OAuthClientInformationFull | None) -> None:
        self.tokens: Any = None
        self.info = info

    async def get_tokens(self) -> Any:
        """None until there are some."""
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        """Keeps them."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """What the authorisation server knows of this client."""
        return self.info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keeps it."""
        self.info = client_info


class Person:
    """Follows the authorisation URL at once, as a person who agrees to everything."""

    def __init__(self) -> None:
        self.came: dict[str, list[str]] = {}

    async def redirect(self, url: str) -> None:
        """Opens the URL and keeps what the redirect brings back."""
        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(url, follow_redirects=False)
        self.came = parse_qs(urlsplit(answer.headers["location"]).query)

    async def callback(self) -> AuthorizationCodeResult:
        """The code, the state and the issuer."""
        first = {key: values[0] for key, values in self.came.items()}
        return AuthorizationCodeResult(code=first["code"], state=first.get("state"), iss=first.get("iss"))


async def _elicited(context: Any, params: Any) -> types.ElicitResult:
    properties = getattr(params, "requested_schema", {}).get("properties", {})
    content = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    return types.ElicitResult(action="accept", content=content or {"confirmed": True})


async def _sampled(context: Any, params: Any) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text=""), model="none")


async def _roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[])


def _auth(url: str, scenario: str, about: dict[str, Any]) -> httpx2.Auth:
    if scenario == "auth/client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=about["client_id"],
            subject=about["client_id"],
            signing_algorithm=about.get("signing_algorithm", "ES256"),
            signing_key=about["private_key_pem"],
        )
        return PrivateKeyJWTOAuthProvider(
            server_url=url,
            storage=Memory(None),
            client_id=about["client_id"],
            assertion_provider=signed.create_assertion_provider(),
        )
    if scenario == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(
            server_url=url,
            storage=Memory(None),
            client_id=about["client_id"],
            client_secret=about["client_secret"],
            token_endpoint_auth_method="client_secret_basic",
        )
    known = None
    if "client_id" in about:
        known = OAuthClientInformationFull(
            client_id=about["client_id"],
            client_secret=about.get("client_secret"),
            redirect_uris=[_REDIRECT],
            token_endpoint_auth_method="client_secret_basic" if about.get("client_secret") else "none",
        )
    person = Person()
    return OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="agenttrace-conformance",
            redirect_uris=[_REDIRECT],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        storage=Memory(known),
        redirect_handler=person.redirect,
        callback_handler=person.callback,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )


def _arguments(tool: types.Tool) -> dict[str, Any]:
    properties = tool.input_schema.get("properties", {})
    return {
        name: _SAMPLES.get(properties.get(name, {}).get("type"), "x") for name in tool.input_schema.get("required", [])
    }


async def _talk(client: Client, scenario: str, about: dict[str, Any]) -> None:
    """Lists the tools and calls them, with the arguments that the scenario wants to see."""
    tools = (await client.list_tools()).tools
    calls = about.get("toolCalls") or [
        {"name": tool.name, "arguments": _PER_TOOL.get(tool.name) or _arguments(tool)} for tool in tools
    ]
    if scenario == "json-schema-2020-12-preservation":
        focal = next(tool for tool in tools if tool.name == "json_schema_2020_12_tool")
        calls = [{"name": "json_schema_echo", "arguments": {"schema": focal.input_schema}}]
    elif scenario in {"initialize", "json-schema-ref-no-deref"}:
        calls = []
    names = {tool.name for tool in tools}
    for call in calls:
        if call["name"] in names:
            try:
                await client.call_tool(call["name"], call.get("arguments") or {})
            except Exception as error:
                # Some scenarios answer with errors; the suite judges what the client sent.
                print(f"{call['name']}: {type(error).__name__}: {error}", file=sys.stderr)


async def run(url: str, scenario: str, proxy: str | None, name: str) -> None:
    """One scenario against the server at `url`, through `proxy` where one is given."""
    about = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION")
    modern = version == _MODERN and scenario != "json-schema-ref-no-deref"  # the suite's server for it is not
    transport = Through(url, proxy) if proxy is not None and name == "server" else httpx2.AsyncHTTPTransport()
    known = proxy if proxy is not None and name == "proxy" else url
    auth = _auth(known, scenario, about) if scenario.startswith("auth/") else None
    async with httpx2.AsyncClient(auth=auth, transport=transport, timeout=30) as http:
        async with Client(
            streamable_http_client(url=known, http_client=http),
            mode="auto" if modern else "legacy",
            elicitation_callback=_elicited,
            sampling_callback=_sampled,
            list_roots_callback=_roots,
        ) as client:
            await _talk(client, scenario, about)


def main() -> None:
    """What the suite starts: the URL of its server is the last argument."""
    url, scenario = sys.argv[-1], os.environ["MCP_CONFORMANCE_SCENARIO"]
    with tempfile.TemporaryDirectory(prefix="agenttrace-conformance-") as folder:
        way: AbstractContextManager[str | None] = nullcontext()
        if os.environ.get("AGENTTRACE_CONFORMANCE_VIA") == "proxy":
            way = http_proxy(url, Path(folder), Path(os.environ["AGENTTRACE_CONFORMANCE_SINK"]))
        with way as proxy:
            asyncio.run(run(url, scenario, proxy, os.environ.get("AGENTTRACE_CONFORMANCE_NAME", "proxy")))


if __name__ == "__main__":
    main()
