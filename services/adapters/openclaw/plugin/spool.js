// The spool folder, where deliveries wait for a collector. The format is the forwarder's: services/forwarder/README.md.
import fs from "node:fs";
import { join } from "node:path";

const BLOCK_BYTES = 4096;
const MAX_FILES = 10_000;
const MAX_BYTES = 256 * 1024 * 1024;
const FULL_TRUSTED_MS = 1_000;
const DROPPED_NAMED_BYTES = 4 * 1024 * 1024;
const DROPPED_MAX_BYTES = 8 * 1024 * 1024;
const OURS = fs.constants.O_NOFOLLOW;
const APPEND = fs.constants.O_WRONLY | fs.constants.O_APPEND | fs.constants.O_CREAT | OURS;

export class Spool {
  #home;
  #folder;
  #maxFiles;
  #maxBlocks;

  constructor(home, runtime, env) {
    this.#home = home;
    this.#folder = join(home, "spool", runtime);
    this.#maxFiles = number(env.AGENTTRACE_SPOOL_MAX_FILES, MAX_FILES);
    this.#maxBlocks = Math.floor(number(env.AGENTTRACE_SPOOL_MAX_BYTES, MAX_BYTES) / BLOCK_BYTES);
  }

  /** Writes one delivery {id, body[, oversized]}, or counts it as dropped. Never throws. */
  write(delivery) {
    const head = `agenttrace-spool/1 pid=${process.pid}${delivery.oversized ? ` oversized=${delivery.oversized}` : ""}\n`;
    const blocks = blocksOf(head.length + delivery.body.length);
    const temporary = join(this.#folder, `.tmp.${delivery.id}`);
    try {
      this.#enter();
    } catch {
      return;
    }
    try {
      if (!this.#fits(this.#length(".files") + 1, this.#length(".blocks") + blocks) && !this.#recount(1, blocks)) {
        throw new Error("full");
      }
      fs.writeFileSync(temporary, Buffer.concat([Buffer.from(head), delivery.body]), { flag: "wx", mode: 0o600 });
      this.#grow(".files", 1);
      this.#grow(".blocks", blocks);
      fs.renameSync(temporary, join(this.#folder, delivery.id));
    } catch {
      this.#drop(delivery, temporary);
    }
  }

  // Only folders that are ours, no symlink, and closed to others: payloads are raw.
  #enter() {
    fs.mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    for (const folder of [join(this.#home, "spool"), this.#folder]) {
      const stat = fs.lstatSync(folder);
      if (!stat.isDirectory() || stat.uid !== process.geteuid()) throw new Error("not our folder");
      if (stat.mode & 0o077) fs.chmodSync(folder, 0o700);
    }
  }

  #fits(files, blocks) {
    return files <= this.#maxFiles && blocks <= this.#maxBlocks;
  }

  #length(name) {
    return fs.statSync(join(this.#folder, name), { throwIfNoEntry: false })?.size ?? 0;
  }

  #grow(name, bytes) {
    const file = fs.openSync(join(this.#folder, name), APPEND, 0o600);
    try {
      fs.writeSync(file, Buffer.alloc(bytes, " "));
    } finally {
      fs.closeSync(file);
    }
  }

  // The counters only grow while the collector empties the folder, so "full" is believed only after a count.
  #recount(files, blocks) {
    const mark = join(this.#folder, ".full");
    const age = Date.now() - Number.parseInt(fs.existsSync(mark) ? fs.readFileSync(mark, "latin1") : "0", 10);
    if (age >= 0 && age < FULL_TRUSTED_MS) return false;
    let [there, used] = [0, 0];
    for (const name of fs.readdirSync(this.#folder)) {
      if (name.startsWith(".") && !name.startsWith(".tmp.")) continue;
      there += 1;
      used += blocksOf(fs.statSync(join(this.#folder, name), { throwIfNoEntry: false })?.size ?? 0);
    }
    fs.writeFileSync(join(this.#folder, ".files"), " ".repeat(there), { mode: 0o600 });
    fs.writeFileSync(join(this.#folder, ".blocks"), " ".repeat(used), { mode: 0o600 });
    if (this.#fits(there + files, used + blocks)) return true;
    fs.writeFileSync(mark, `${Date.now()}\n`, { mode: 0o600 });
    return false;
  }

  #drop(delivery, temporary) {
    try {
      fs.rmSync(temporary, { force: true });
      const file = fs.openSync(join(this.#folder, ".dropped"), APPEND, 0o600);
      try {
        const size = fs.fstatSync(file).size;
        const bytes = String(Math.min(delivery.oversized ?? delivery.body.length, 9_999_999_999)).padStart(10, "0");
        if (size < DROPPED_NAMED_BYTES) fs.writeSync(file, `${delivery.id} ${bytes}\n`);
        else if (size < DROPPED_MAX_BYTES) fs.writeSync(file, "+");
      } finally {
        fs.closeSync(file);
      }
    } catch {
      // A disk too full for this record: the collector's own counts show the gap.
    }
  }
}

function blocksOf(bytes) {
  return Math.ceil(bytes / BLOCK_BYTES);
}

function number(text, otherwise) {
  return /^\d{1,15}$/.test(text ?? "") ? Number(text) : otherwise;
}
