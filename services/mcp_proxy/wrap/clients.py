"""Where each client keeps its MCP servers, and how a file tells whose it is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from schemas.errors import UserError
from services.mcp_proxy.wrap.document import Document

Client = Literal["claude-code", "codex", "cursor", "vscode", "generic"]
CLIENTS: tuple[Client, ...] = ("claude-code", "codex", "cursor", "vscode", "generic")

# `*` is every key: ~/.claude.json has servers of the user, and of each project.
_JSON: dict[str, tuple[tuple[str, ...], ...]] = {
    "claude-code": (("mcpServers",), ("projects", "*", "mcpServers")),
    "cursor": (("mcpServers",),),
    "vscode": (("servers",),),
    "generic": (("mcpServers",), ("servers",), ("mcp_servers",), ("projects", "*", "mcpServers")),
}
_TOML = (("mcp_servers",),)
_NAMES: dict[str, Client] = {
    ".claude.json": "claude-code",
    ".mcp.json": "claude-code",
    "claude_desktop_config.json": "claude-code",
    "managed-mcp.json": "claude-code",
}
_FOLDERS: dict[str, Client] = {".cursor": "cursor", ".vscode": "vscode"}


def parse(text: str, path: Path, client: Client | None) -> tuple[Document, Client]:
    """The document with its servers, and whose it is. Raises UserError for what cannot be read as that client's."""
    toml = path.suffix.lower() == ".toml"
    if client is not None and toml != (client == "codex") and client != "generic":
        kind = "TOML (config.toml)" if client == "codex" else "JSON"
        raise UserError(f"{path}: the configuration of {client} is {kind}; name another file or --client", exit_code=64)
    if toml:
        from services.mcp_proxy.wrap.toml import Toml

        return Toml(text, str(path), _TOML), client or "codex"
    from services.mcp_proxy.wrap.jsonc import Json

    found = client or _NAMES.get(path.name) or _FOLDERS.get(path.parent.name)
    if found is not None:
        return Json(text, str(path), _JSON[found]), found
    document = Json(text, str(path), _JSON["generic"])
    if isinstance(document.meaning.get("projects"), dict):
        return Json(text, str(path), _JSON["claude-code"]), "claude-code"
    if document.entries and all(entry.where[0] == "servers" for entry in document.entries):
        return document, "vscode"
    return document, "generic"


def keys(client: Client) -> str:
    """Where this client's servers are, for people."""
    if client == "codex":
        return "[mcp_servers.NAME]"
    return " or ".join(f"'{'.'.join(way)}'" for way in _JSON[client])
