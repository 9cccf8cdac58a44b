// OpenClaw plugin: hands each hook call to the AgentTrace collector. Every handler returns undefined at once and never throws:
// OpenClaw blocks a tool call whose before_tool_call handler throws or takes 15 s.
import { Sender } from "./sender.js";
import { safeServers, serialise } from "./payload.js";

// Hooks that only repeat what others tell, as whole histories or whole configurations, are left out.
export const HOOKS = [
  "before_tool_call",
  "after_tool_call",
  "tool_result_persist",
  "session_start",
  "session_end",
  "before_model_resolve",
  "before_agent_run",
  "agent_end",
  "llm_input",
  "llm_output",
  "model_call_started",
  "model_call_ended",
  "before_compaction",
  "after_compaction",
  "before_reset",
  "subagent_spawned",
  "subagent_progress",
  "subagent_ended",
  "message_received",
  "message_sent",
  "resolve_exec_env",
  "before_install",
  "skill_changed",
  "cron_changed",
  "gateway_start",
  "gateway_stop",
];

// Above all others, since a plugin that blocks a call hides it from those below.
const PRIORITY = 1_000_000;
const ONCE = Symbol.for("agenttrace.openclaw.sender");

// register() runs several times in one process, and which of the loads is live depends on the command: one sender serves all.
function sender() {
  globalThis[ONCE] ??= new Sender("openclaw");
  return globalThis[ONCE];
}

export default {
  id: "agenttrace",
  name: "AgentTrace",
  description: "Tells the AgentTrace collector what the hooks see.",
  register(api) {
    let servers = new Map();
    try {
      servers = safeServers(Object.keys(api.config?.mcp?.servers ?? {}));
    } catch {
      // Without the names the collector learns a server from its first result.
    }
    for (const hook of HOOKS) {
      const handler = (event, ctx) => {
        try {
          const now = Date.now();
          sender().send(serialise(hook, event, ctx, now, servers), now);
        } catch {
          // An observer's failure is never the agent's.
        }
        return undefined;
      };
      try {
        api.on(hook, handler, { priority: PRIORITY });
      } catch {
        // A release that does not know this hook still has the others.
      }
    }
  },
};
