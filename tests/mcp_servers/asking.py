"""Tools that ask the client back: sampling, elicitation, and results with `input_required` (MRTR, revision 2026-07-28)."""

from __future__ import annotations

import json
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel, Field


class Answer(BaseModel):
    """What `test_elicitation` asks for."""

    response: str = Field(description="User's response")


class Defaults(BaseModel):
    """A default of every primitive type."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field(default="active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


def _titled(**values: str) -> list[dict[str, str]]:
    return [{"const": value, "title": title} for value, title in values.items()]


class Enums(BaseModel):
    """Every form of an enumeration."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})
    titledSingle: str = Field(json_schema_extra={"oneOf": _titled(low="Low", medium="Medium", high="High")})
    untitledMulti: list[str] = Field(
        json_schema_extra={"items": {"type": "string", "enum": ["read", "write", "execute"]}}
    )
    titledMulti: list[str] = Field(
        json_schema_extra={"items": {"anyOf": _titled(feature="Feature", bug="Bug", docs="Docs")}}
    )
    legacyEnum: str = Field(
        json_schema_extra={"enum": ["small", "medium", "large"], "enumNames": ["Small", "Medium", "Large"]}
    )


def _message(text: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=TextContent(type="text", text=text))


def _ask(message: str, name: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str) -> CreateMessageRequest:
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[_message(text)], max_tokens=100))


def _content(answer: Any, name: str) -> Any:
    return answer.content.get(name) if isinstance(answer, ElicitResult) and answer.content else None


async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    # Without related_request_id the request would go to the GET stream, which may not be open.
    result = await ctx.session.create_message(
        messages=[_message(prompt)], max_tokens=100, related_request_id=ctx.request_id
    )
    return f"LLM response: {getattr(result.content, 'text', '')}"


async def _elicit(ctx: Context, message: str, schema: type[BaseModel]) -> str:
    result = await ctx.elicit(message=message, schema=schema)
    content = result.data.model_dump_json() if result.action == "accept" else "{}"
    return f"action={result.action}, content={content}"


async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the person."""
    return f"User response: {await _elicit(ctx, message, Answer)}"


async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks the person, with defaults."""
    return f"Elicitation result: {await _elicit(ctx, 'Please provide user information', Defaults)}"


async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks the person to choose."""
    return f"Elicitation completed: {await _elicit(ctx, 'Please select values', Enums)}"


async def test_streaming_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Asks the person in the way that the request's revision has."""
    if ctx.input_responses:
        return "answered"
    return InputRequiredResult(input_requests={"user_name": _ask("What is your name?", "name")})


async def test_missing_capability(ctx: Context) -> str:
    """Refuses a client that cannot sample."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            code=MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="This tool requires the client 'sampling' capability",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return "Client declared sampling capability; proceeding."


async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    """One question."""
    answers = ctx.input_responses or {}
    if "user_name" in answers:
        return f"Hello, {_content(answers['user_name'], 'name')}!"
    return InputRequiredResult(input_requests={"user_name": _ask("What is your name?", "name")})


async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    """One question to the model."""
    answers = ctx.input_responses or {}
    if "capital_question" in answers:
        return f"Model said: {getattr(getattr(answers['capital_question'], 'content', None), 'text', '?')}"
    return InputRequiredResult(input_requests={"capital_question": _sample("What is the capital of France?")})


async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    """The client's roots."""
    answers = ctx.input_responses or {}
    if "client_roots" in answers:
        return f"Client exposed {len(getattr(answers['client_roots'], 'roots', []))} root(s)."
    return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})


async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    """A state that must come back."""
    if ctx.input_responses and "confirm" in ctx.input_responses and ctx.request_state == "a nonce":
        return "state-ok: confirmation received"
    return InputRequiredResult(
        input_requests={"confirm": _ask("Please confirm", "ok", "boolean")}, request_state="a nonce"
    )


async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    """Three questions at once."""
    if ctx.input_responses and {"user_name", "greeting", "client_roots"} <= ctx.input_responses.keys():
        return "All inputs received."
    return InputRequiredResult(
        input_requests={
            "user_name": _ask("What is your name?", "name"),
            "greeting": _sample("Generate a greeting"),
            "client_roots": ListRootsRequest(),
        },
        request_state="multiple-inputs",
    )


async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    """Three rounds, with a state that changes."""
    state = json.loads(ctx.request_state) if ctx.request_state else {"round": 0}
    answers = ctx.input_responses or {}
    if state["round"] == 1 and "step1" in answers:
        return InputRequiredResult(
            input_requests={"step2": _ask("Step 2: What is your favorite color?", "color")},
            request_state=json.dumps({"round": 2, "name": _content(answers["step1"], "name")}),
        )
    if state["round"] == 2 and "step2" in answers:
        return f"{state.get('name')} likes {_content(answers['step2'], 'color')}."
    return InputRequiredResult(
        input_requests={"step1": _ask("Step 1: What is your name?", "name")},
        request_state=json.dumps({"round": 1}),
    )


async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    """A state that the SDK seals, so that a changed one is refused."""
    if ctx.request_state is None:
        return InputRequiredResult(
            input_requests={"confirm": _ask("Please confirm", "ok", "boolean")}, request_state="round-1"
        )
    return f"state-ok: {ctx.request_state}"


async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
    """Asks only what the client can answer."""
    can = ctx.client_capabilities
    asked: dict[str, InputRequest] = {}
    if can is None or can.sampling is not None:
        asked["sample"] = _sample("Say hello")
    if can is None or can.elicitation is not None:
        asked["ask"] = _ask("What is your name?", "name")
    return InputRequiredResult(input_requests=asked, request_state="capability-gated")


async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | InputRequiredResult:
    """A prompt that asks first."""
    answers = ctx.input_responses or {}
    if "user_context" in answers:
        return [UserMessage(content=f"Use the following context: {_content(answers['user_context'], 'context')}")]
    return InputRequiredResult(input_requests={"user_context": _ask("What context should the prompt use?", "context")})


def offer(server: MCPServer) -> None:
    """Adds all of these to a server."""
    for tool in (
        test_sampling,
        test_elicitation,
        test_elicitation_sep1034_defaults,
        test_elicitation_sep1330_enums,
        test_streaming_elicitation,
        test_missing_capability,
        test_input_required_result_elicitation,
        test_input_required_result_sampling,
        test_input_required_result_list_roots,
        test_input_required_result_request_state,
        test_input_required_result_multiple_inputs,
        test_input_required_result_multi_round,
        test_input_required_result_tampered_state,
        test_input_required_result_capabilities,
    ):
        server.add_tool(tool)
    server.prompt()(test_input_required_result_prompt)
