// The clients of the public TypeScript SDK, as client.py: node client.mjs MODULES v1|v2 PLAN.json
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as pause } from 'node:timers/promises';

const CONCURRENT = 16;
const LEAVE_AFTER_MS = 500;

const [modules, version, file] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const [{ Client }, { StdioClientTransport }] = {
  v1: () => [require('@modelcontextprotocol/sdk/client/index.js'), require('@modelcontextprotocol/sdk/client/stdio.js')],
  v2: () => [require('@modelcontextprotocol/client'), require('@modelcontextprotocol/client/stdio')]
}[version]();

const plan = JSON.parse(readFileSync(file, 'utf8'));
const client = new Client({ name: 'harness', version: '1.0.0' });

// v1 takes the schema of the result between the parameters and the options.
const call = ([name, args], options = {}) =>
  version === 'v1' ? client.callTool({ name, arguments: args }, undefined, options) : client.callTool({ name, arguments: args }, options);

async function ended(promise) {
  try {
    return (await promise).isError ? 'error' : 'ok';
  } catch (error) {
    console.error(String(error));
    return 'error';
  }
}

const found = {};
const [command, ...args] = plan.command;
await client.connect(new StdioClientTransport({ command, args, env: plan.environment }));
found.initialize = 'ok';
found.list = (await client.listTools()).tools.length ? 'ok' : 'error';
found.call = await ended(call(plan.call));
found.failing = await ended(call(plan.failing));
found.unknown = await ended(call(['no_such_tool', {}]));
if (plan.big) found.big = await ended(call(plan.big));
if (plan.steps) {
  let seen = 0;
  const how = await ended(call(plan.steps, { onprogress: () => { seen += 1; } }));
  found.steps = seen ? how : 'no progress';
}
const all = await Promise.all(Array.from({ length: CONCURRENT }, () => ended(call(plan.call))));
found.concurrent = all.every(how => how === 'ok') ? 'ok' : 'error';
if (plan.slow) {
  const leave = new AbortController();
  const slow = call(plan.slow, { signal: leave.signal }).then(() => 'finished', () => 'cancelled');
  await pause(LEAVE_AFTER_MS);
  leave.abort();
  found.cancel = await slow;
  found.after = await ended(call(plan.call));
}
await client.close();
console.log(JSON.stringify(found));
