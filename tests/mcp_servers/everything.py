"""An MCP server on the public Python SDK that offers what the official conformance suite asks a server for.

    python -m tests.mcp_servers.everything --stdio
    python -m tests.mcp_servers.everything --port 3001      # streamable HTTP at http://127.0.0.1:3001/mcp

The names and texts that begin with `test_` and `test://` are the suite's (`@modelcontextprotocol/conformance` 0.1.16 and
0.2.0-alpha.12); `echo`, `big`, `slow`, `steps` and `fail` are for the harnesses of this repository.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer, RequestStateSecurity
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.types import (
    AudioContent,
    Completion,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import Field

from tests.mcp_servers.asking import offer
from tests.mcp_servers.events import MemoryEvents

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

server = MCPServer(
    name="agenttrace-everything",
    version="1.0.0",
    # The suite tampers with a requestState and expects the SDK to refuse it; a fixed key keeps runs alike.
    request_state_security=RequestStateSecurity(keys=[b"a key of the tests, known to everybody"]),
)
offer(server)


def _image() -> ImageContent:
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


# tools of the harnesses


@server.tool()
def echo(text: str) -> str:
    """Gives the text back."""
    return text


@server.tool()
def big(size: int) -> str:
    """A text of so many bytes that does not compress to nothing."""
    line = "".join(chr(33 + (7 * i) % 90) for i in range(97))
    return (line * (size // len(line) + 1))[:size]


@server.tool()
async def slow(seconds: float) -> str:
    """Answers after a while, unless it is cancelled."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Reports progress so many times, and says something on standard error."""
    for step in range(count):
        await ctx.report_progress(progress=step + 1, total=count, message=f"step {step + 1}")
        await asyncio.sleep(0.01)
    print(f"{count} steps done", file=sys.stderr, flush=True)
    return f"{count} steps"


@server.tool()
def fail(text: str) -> str:
    """Always fails."""
    raise RuntimeError(text)


# tools of the suite


@server.tool()
def test_simple_text() -> str:
    """Text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> list[ImageContent]:
    """An image."""
    return [_image()]


@server.tool()
def test_audio_content() -> list[AudioContent]:
    """A sound."""
    return [AudioContent(type="audio", data=WAV, mime_type="audio/wav")]


@server.tool()
def test_embedded_resource() -> list[EmbeddedResource]:
    """A resource inside a result."""
    return [_embedded("test://embedded-resource", "This is an embedded resource content.")]


@server.tool()
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Text, an image and a resource in one result."""
    return [
        TextContent(type="text", text="Multiple content types test:"),
        _image(),
        _embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
    ]


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Three log messages on the way."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(text)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


@server.tool()
async def test_logging_tool(ctx: Context) -> str:
    """Logs at a level that a client must have asked for."""
    await ctx.debug("only for those who asked")
    return "logged"


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Progress 0, 50, 100."""
    for done in (0, 50, 100):
        await ctx.report_progress(progress=done, total=100, message=f"Completed step {done} of 100")
        await asyncio.sleep(0.05)
    return "progress reported"


@server.tool()
def test_error_handling() -> str:
    """An error as a result."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool()
def test_x_mcp_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "<none>",
) -> str:
    """An argument that the client mirrors into the header Mcp-Param-Region."""
    return f"region={region}"


@server.tool(name="json_schema_2020_12_tool")
def json_schema_tool() -> str:
    """A schema with every keyword that the suite looks for."""
    return "json_schema_2020_12_tool"


# The SDK derives schemas from signatures and has no public way to give one.
server._tool_manager._tools["json_schema_2020_12_tool"].parameters = SCHEMA_2020_12


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Closes its own SSE stream; the rest is for a client that comes back with Last-Event-ID."""
    await ctx.info("Before disconnect")
    await ctx.close_sse_stream()
    await asyncio.sleep(0.2)
    await ctx.info("After reconnect")
    return "Reconnection test completed"


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """Announces a changed list of tools."""
    server.add_tool(lambda: "dynamic", name="test_dynamic_tool")
    server.remove_tool("test_dynamic_tool")
    await ctx.notify_tools_changed()
    return "tool list changed"


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Announces a changed list of prompts."""
    server.add_prompt(Prompt.from_function(lambda: "dynamic", name="test_dynamic_prompt"))
    server.remove_prompt("test_dynamic_prompt")
    await ctx.notify_prompts_changed()
    return "prompt list changed"


# resources


@server.resource("test://static-text")
def static_text() -> str:
    """Text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary")
def static_binary() -> bytes:
    """Bytes."""
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data")
def template(id: str) -> str:
    """A template with one parameter."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource")
def watched() -> str:
    """A resource to subscribe to."""
    return "Watched resource content"


# prompts


@server.prompt()
def test_simple_prompt() -> list[UserMessage]:
    """A prompt without arguments."""
    return [UserMessage(content="This is a simple prompt for testing.")]


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    """A prompt with two arguments."""
    return [UserMessage(content=f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """A prompt with a resource inside."""
    return [
        UserMessage(content=_embedded(resourceUri, "Embedded resource content for testing.")),
        UserMessage(content="Please process the embedded resource above."),
    ]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """A prompt with an image inside."""
    return [UserMessage(content=_image()), UserMessage(content="Please analyze the image above.")]


@server.completion()
async def _complete(ref: Any, argument: Any, context: Any) -> Completion:
    return Completion(values=[], total=0, has_more=False)


async def _nothing(context: Any, params: Any) -> EmptyResult:
    return EmptyResult()


for method, params in (
    ("logging/setLevel", SetLevelRequestParams),
    ("resources/subscribe", SubscribeRequestParams),
    ("resources/unsubscribe", UnsubscribeRequestParams),
):
    server._lowlevel_server.add_request_handler(method, params, _nothing)


def main() -> None:
    """Serve on standard input and output, or on a port of 127.0.0.1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--stdio", action="store_true")
    way.add_argument("--port", type=int)
    args = parser.parse_args()
    if args.stdio:
        server.run(transport="stdio")
    else:
        server.run(
            transport="streamable-http",
            host="127.0.0.1",
            port=args.port,
            event_store=MemoryEvents(),
            retry_interval=100,
        )


if __name__ == "__main__":
    main()
