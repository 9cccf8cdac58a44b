// Deliveries to the collector, one after another and in order, off the agent's path; to the spool when no collector answers.
import { createHash, randomBytes } from "node:crypto";
import http from "node:http";
import { homedir } from "node:os";
import { isAbsolute, join } from "node:path";
import { Spool } from "./spool.js";

const TIMEOUT_MS = 2_000;
const AWAY_MS = 1_000; // how long a collector that did not answer is not asked again
const MAX_QUEUE_BYTES = 64 * 1024 * 1024;
const MAX_BODY_BYTES = 32 * 1024 * 1024;

export class Sender {
  #runtime;
  #queue = [];
  #bytes = 0;
  #busy = false;
  #awayUntil = 0;
  #ids = new Ids();
  #spool;
  #agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

  constructor(runtime, env = process.env) {
    this.#runtime = runtime;
    const home = path(env.AGENTTRACE_HOME) ?? join(homedir(), ".agenttrace");
    this.socket = path(env.AGENTTRACE_SOCKET) ?? join(home, "collector.sock");
    this.#spool = new Spool(home, runtime, env);
    // What was not acknowledged when the process ends is spooled; the collector knows a repeated id.
    process.on("exit", () => this.flush());
  }

  /** Queues one payload (JSON text). Costs no I/O. */
  send(json, now = Date.now()) {
    const body = Buffer.from(json);
    const delivery = { id: this.#ids.next(now), body, ...oversized(body) };
    this.#queue.push(delivery);
    this.#bytes += delivery.body.length;
    if (!this.#busy) {
      this.#busy = true;
      setImmediate(() => this.#pump()).unref();
    }
  }

  /** Spools all that is queued, at once. */
  flush() {
    for (const delivery of this.#queue.splice(0)) this.#spool.write(delivery);
    this.#bytes = 0;
  }

  async #pump() {
    try {
      while (this.#queue.length > 0) {
        // A collector that is too slow costs memory only up to a bound.
        if (this.#bytes > MAX_QUEUE_BYTES) this.flush();
        else await this.#deliver(this.#queue[0]);
      }
    } catch {
      this.flush();
    } finally {
      this.#busy = false;
    }
  }

  async #deliver(delivery) {
    const taken = Date.now() >= this.#awayUntil && (await this.#post(delivery));
    if (this.#queue[0] !== delivery) return; // the process's end spooled it meanwhile
    this.#queue.shift();
    this.#bytes -= delivery.body.length;
    if (!taken) this.#spool.write(delivery);
  }

  #post(delivery) {
    return new Promise((resolve) => {
      let open = true;
      const done = (taken) => {
        if (!open) return;
        open = false;
        if (!taken) this.#awayUntil = Date.now() + AWAY_MS;
        resolve(taken);
      };
      const request = http.request(
        {
          socketPath: this.socket,
          method: "POST",
          path: `/hooks/${this.#runtime}`,
          agent: this.#agent,
          timeout: TIMEOUT_MS,
          headers: {
            Host: "localhost",
            "Content-Type": "application/json",
            "Content-Length": delivery.body.length,
            "X-AgentTrace-Delivery": delivery.id,
            "X-AgentTrace-Pid": process.pid,
            ...(delivery.oversized === undefined ? {} : { "X-AgentTrace-Oversized": delivery.oversized }),
          },
        },
        (response) => {
          response.resume();
          response.on("end", () => done(response.statusCode >= 200 && response.statusCode < 300));
          response.on("error", () => done(false));
          response.on("close", () => done(false));
        },
      );
      request.on("timeout", () => request.destroy());
      request.on("error", () => done(false));
      // The agent's process must be able to end while the collector is asked.
      request.on("socket", (socket) => socket.unref());
      request.end(delivery.body);
    });
  }
}

// UUIDv7 (RFC 9562) whose low 16 bits are zero, since the collector numbers a delivery's events there. The 12 bits behind the
// time count within a millisecond, so that the spool, which is read in the order of names, keeps the order of the hooks.
class Ids {
  #ms = 0;
  #count = 0;

  next(now) {
    if (now > this.#ms) {
      this.#ms = now;
      this.#count = 0;
    } else if (++this.#count > 0xfff) {
      this.#ms += 1;
      this.#count = 0;
    }
    const time = this.#ms.toString(16).padStart(12, "0");
    const random = randomBytes(6);
    random[0] = (random[0] & 0x3f) | 0x80;
    const hex = random.toString("hex");
    const count = this.#count.toString(16).padStart(3, "0");
    return `${time.slice(0, 8)}-${time.slice(8)}-7${count}-${hex.slice(0, 4)}-${hex.slice(4)}0000`;
  }
}

function oversized(body) {
  if (body.length <= MAX_BODY_BYTES) return {};
  const sha256 = createHash("sha256").update(body).digest("hex");
  const marker = { agenttrace_oversized: { size_bytes: body.length, sha256 } };
  return { body: Buffer.from(JSON.stringify(marker)), oversized: body.length };
}

function path(value) {
  return value && isAbsolute(value) ? value : undefined;
}
