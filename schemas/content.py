"""What is kept of a payload's content: its size, its keyed hash and, by capture level, a redacted summary."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Content(BaseModel):
    """Input or output of a call. `hash` is `hmac-sha256:<key id>:<hex>` over RFC 8785 canonical JSON, before redaction."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    size_bytes: int = Field(ge=0)
    hash: str | None = None
    summary: str | None = None
    redaction_applied: bool = False
    redactions: dict[str, int] = Field(default_factory=dict, description="kind of secret to how many were masked")
    schema_version: str | None = None
    is_error_result: bool | None = None
