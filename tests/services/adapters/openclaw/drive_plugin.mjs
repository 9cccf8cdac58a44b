// Loads the plugin as OpenClaw does (register() several times, the last load live) and calls its handlers with hook calls
// read from standard input, one JSON a line. Prints what came back, as one JSON line.
import { createInterface } from "node:readline";

const [plugin, ending, config] = process.argv.slice(2);
const handlers = new Map();
const { default: loaded } = await import(plugin);
for (const registrationMode of ["full", "discovery", "tool-discovery"]) {
  handlers.clear();
  loaded.register({
    registrationMode,
    config: JSON.parse(config),
    on: (hook, handler, options) => handlers.set(hook, { handler, ...options }),
  });
}

const odd = {
  circular: () => {
    const event = { toolName: "exec", big: 10n, call: () => 1, error: new Error("boom") };
    event.self = event;
    return event;
  },
  throwing: () => ({
    get toolName() {
      throw new Error("read");
    },
  }),
  nothing: () => undefined,
};

let [returned, slowest, calls] = [0, 0, 0];
for await (const line of createInterface({ input: process.stdin })) {
  const { hook, event, ctx } = JSON.parse(line);
  const entry = handlers.get(hook);
  if (entry === undefined) continue;
  const began = performance.now();
  const back = entry.handler(typeof event === "string" ? odd[event]() : event, ctx);
  slowest = Math.max(slowest, performance.now() - began);
  returned += back === undefined ? 0 : 1;
  calls += 1;
}
console.log(JSON.stringify({ calls, returned, slowest, priority: handlers.get("before_tool_call").priority }));
if (ending === "kill") process.exit(0);
