"""The configuration file agenttrace.yaml as models; every field has a default, so the first run needs no file.

Precedence: defaults < file < environment (`AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS`) < command line.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=0, le=65535)]
Level = Literal["off", "summary", "sampled", "full_redacted", "full_raw"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RuntimeConfig(_Section):
    """Which agent runtime this sidecar belongs to; informative, a collector takes all four."""

    name: Literal["openclaw", "claude_code", "codex", "hermes", "other"] | None = None
    adapter: str | None = None


class CaptureSide(_Section):
    """What is kept of one direction. `max_bytes` bounds the summary after redaction."""

    mode: Level = "summary"
    max_bytes: int = Field(default=4096, ge=0, le=262_144)
    hash: bool = True
    redact: bool = True


class CaptureConfig(_Section):
    """Inputs (arguments, prompts) and outputs (results, answers)."""

    input: CaptureSide = CaptureSide()
    output: CaptureSide = CaptureSide()
    sample_rate: float = Field(default=0.1, ge=0, le=1, description="share of calls kept with mode: sampled")


class McpDetect(_Section):
    """How an MCP tool is recognised in a hook's tool name."""

    name_patterns: tuple[str, ...] = ("serverName--toolName", "mcp__server__tool")
    plugin_meta: bool = True


class McpProxy(_Section):
    """What the MCP proxy publishes."""

    enabled: bool = True
    capture_tools_list: bool = True
    capture_tools_call: bool = True
    capture_resources: bool = True
    capture_prompts: bool = True


class McpConfig(_Section):
    """MCP detection and proxy."""

    detect: McpDetect = McpDetect()
    proxy: McpProxy = McpProxy()


class PolicyConfig(_Section):
    """Policy decisions; `shadow` records what would have been decided."""

    enabled: bool = False
    mode: Literal["enforce", "shadow"] = "shadow"
    endpoint: str | None = None


class JsonlSink(_Section):
    """Events as JSON lines in a file, for people without Kafka."""

    enabled: bool = False
    path: str | None = None


class OtelSink(_Section):
    """OTLP export."""

    enabled: bool = False
    endpoint: str | None = None
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"


class DatabaseSink(_Section):
    """ClickHouse; the same as `clickhouse.dsn`."""

    enabled: bool = True
    dsn: str | None = None


class Sinks(_Section):
    """Where events go besides Kafka."""

    jsonl: JsonlSink = JsonlSink()
    otel: OtelSink = OtelSink()
    database: DatabaseSink = DatabaseSink()


class Privacy(_Section):
    """Raw content needs both `raw_content_enabled` and a capture mode of full_raw."""

    raw_content_enabled: bool = False
    redact_secrets: bool = True
    user_id_hash_salt_env: str | None = None


class Reliability(_Section):
    """Bounds and waits, in milliseconds."""

    queue_size: int = Field(default=10_000, ge=1)
    flush_interval_ms: int = Field(default=1000, ge=1)
    pending_call_ttl_ms: int = Field(default=300_000, ge=1)
    fail_open: bool = True


class KafkaConfig(_Section):
    """How to reach Kafka. No `bootstrap_servers` means the running embedded broker."""

    bootstrap_servers: str | None = None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None


class ClickHouseConfig(_Section):
    """How to reach ClickHouse. No `dsn` means the running embedded engine."""

    dsn: str | None = None


class CollectorConfig(_Section):
    """The sidecar. `port: 0` takes a free one; relative paths are below AGENTTRACE_HOME."""

    socket: str = "collector.sock"
    host: Literal["127.0.0.1", "::1", "localhost"] = "127.0.0.1"
    port: Port = 8722
    sinks: tuple[Literal["kafka", "jsonl"], ...] = ("kafka",)
    require_token: bool = Field(
        default=False,
        description="POST by TCP needs `Authorization: Bearer` with the content of AGENTTRACE_HOME/collector.token; the socket does not",
    )
    fsync_before_answer: bool = False
    journal_max_bytes: int = Field(default=1 << 30, ge=1 << 20)
    tenant_id: str | None = None
    workspace_id: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class TtlOverride(_Section):
    """A pending-call TTL for the calls that match all given fields."""

    runtime: str | None = None
    mcp_server: str | None = None
    tool: str | None = None
    ttl_ms: int = Field(ge=1)


class PipelinesConfig(_Section):
    """The stream processors."""

    port: Port = 8723
    rules: tuple[str, ...] = Field(default=(), description="rule files besides the shipped pack")
    shipped_rules: bool = True
    approval_ttl_ms: int = Field(default=3_600_000, ge=1)
    ttl_overrides: tuple[TtlOverride, ...] = ()


class SinkConfig(_Section):
    """The ClickHouse sink."""

    port: Port = 8724
    batch_rows: int = Field(default=10_000, ge=1)
    batch_ms: int = Field(default=500, ge=1)


class Config(_Section):
    """Everything below the top key `agenttrace:`."""

    enabled: bool = True
    runtime: RuntimeConfig = RuntimeConfig()
    capture: CaptureConfig = CaptureConfig()
    mcp: McpConfig = McpConfig()
    policy: PolicyConfig = PolicyConfig()
    sinks: Sinks = Sinks()
    privacy: Privacy = Privacy()
    reliability: Reliability = Reliability()
    kafka: KafkaConfig = KafkaConfig()
    clickhouse: ClickHouseConfig = ClickHouseConfig()
    collector: CollectorConfig = CollectorConfig()
    pipelines: PipelinesConfig = PipelinesConfig()
    sink: SinkConfig = SinkConfig()
