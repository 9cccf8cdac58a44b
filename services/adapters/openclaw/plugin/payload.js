// One hook call as JSON, copied at once: {"hook", "event", "ctx", "ts"[, "mcpServer"]}.

// All that is ever read of ctx: in gateway_start it holds the whole configuration, API keys and tokens included.
const CTX = [
  "agentId",
  "channel",
  "channelId",
  "childSessionKey",
  "requesterSessionKey",
  "runId",
  "sessionId",
  "sessionKey",
  "toolCallId",
  "toolName",
  "trigger",
];
const REQUESTER = ["channel", "accountId", "senderId", "senderIsOwner", "roleIds"];
const TRACE = ["traceId", "spanId", "parentSpanId", "traceFlags"];

// Histories that other hooks have told already.
const REPEATED = {
  agent_end: ["messages"],
  before_agent_run: ["messages", "systemPrompt"],
  before_reset: ["messages"],
};

export function serialise(hook, event, ctx, now, servers) {
  const payload = { hook, event: told(hook, event), ctx: picked(ctx), ts: now / 1000 };
  const server = hook === "before_tool_call" ? serverOf(event, servers) : undefined;
  if (server !== undefined) payload.mcpServer = server;
  return toJson(payload);
}

/** Safe name → configured name of the MCP servers, without those that share one. */
export function safeServers(names) {
  const found = new Map();
  const shared = new Set();
  for (const name of names) {
    const safe = safeServer(name);
    if (found.has(safe)) shared.add(safe);
    found.set(safe, name);
  }
  for (const safe of shared) found.delete(safe);
  return found;
}

function safeServer(name) {
  const safe = name.replace(/[^A-Za-z0-9_-]/gu, "-");
  return (/^[A-Za-z]/.test(safe) ? safe : `mcp-${safe}`).slice(0, 30);
}

function serverOf(event, servers) {
  const name = typeof event?.toolName === "string" ? event.toolName : "";
  const cut = name.indexOf("__");
  return cut > 0 ? servers.get(name.slice(0, cut)) : undefined;
}

function told(hook, event) {
  const left = REPEATED[hook];
  if (left === undefined || event === null || typeof event !== "object") return event;
  const copy = { ...event };
  if (Array.isArray(copy.messages)) copy.messageCount = copy.messages.length;
  for (const name of left) delete copy[name];
  return copy;
}

function picked(ctx) {
  const fields = only(ctx, CTX);
  if (ctx?.requester) fields.requester = only(ctx.requester, REQUESTER);
  if (ctx?.trace) fields.trace = only(ctx.trace, TRACE);
  return fields;
}

function only(from, names) {
  const fields = {};
  if (from === null || typeof from !== "object") return fields;
  for (const name of names) {
    const value = from[name];
    if (["string", "number", "boolean"].includes(typeof value) || Array.isArray(value)) fields[name] = value;
  }
  return fields;
}

function toJson(payload) {
  try {
    return JSON.stringify(payload, plain);
  } catch {
    return JSON.stringify(payload, withoutCycles());
  }
}

function plain(_key, value) {
  if (typeof value === "bigint") return String(value);
  if (value instanceof Error) return { name: value.name, message: value.message };
  return value;
}

function withoutCycles() {
  const open = [];
  return function (key, value) {
    const simple = plain(key, value);
    if (simple === null || typeof simple !== "object") return simple;
    while (open.length > 0 && open.at(-1) !== this) open.pop();
    if (open.includes(simple)) return "[circular]";
    open.push(simple);
    return simple;
  };
}
