"""Content: what an event keeps of a call's input or output, by capture level: size and hash always, text only if
allowed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Content(BaseModel):
    """A captured input or output.

    `size_bytes`: UTF-8 bytes of a text, of the canonical JSON of anything else (of the JSON as it came, above 1 MiB).
    `hash`: `hmac-sha256:<key id>:<hex>` over the canonical JSON before redaction, `hmac-sha256:<key id>:raw:<hex>`
    over the bytes as they came above 1 MiB; None without a key. `redactions`: findings by kind in the whole value,
    also past where `summary` was cut.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    size_bytes: int = Field(ge=0)
    hash: str | None = None
    summary: str | None = None
    redaction_applied: bool = False
    redactions: dict[str, int] = Field(default_factory=dict)
    schema_version: str | None = None
    is_error_result: bool | None = None
