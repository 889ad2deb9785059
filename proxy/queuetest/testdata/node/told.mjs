// What the workers for Node have in common: what they do with a job, and what they print.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import pg from "pg";
import { refusal } from "wirefence";

export const name = process.env.NAME;
const acts = (process.env.ACTS ?? "").split(" ").filter(Boolean);
export const concurrency = acts.length ? 4 : 1;
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export const hurry = Number(process.env.HURRY);

let seed = Number(process.env.SEED ?? 1) + 1;
// A number below n: the same ones for the same seed.
function chance(n) {
  seed = (seed * 48271) % 2147483647;
  return seed % n;
}

/** What to do with a job. */
export async function act() {
  if (!acts.length) return (await lines.next()).value;
  const chosen = acts[chance(acts.length)];
  await sleep(chance(500 / hurry) + (chance(20 * hurry) === 0 ? 2 * Number(process.env.WAIT) : 0)); // for which the queue doesn't wait
  return chosen;
}

const print = (event) => console.log(JSON.stringify(event));

export function took(job, claim) {
  const event = { event: "took", job, claim };
  print(event);
  return event;
}

/** Prints how a write ended. */
export async function report(event, write) {
  try {
    await write();
    print({ ...event, event: "wrote" });
  } catch (error) {
    const at = Date.now() * 1000 + 999;
    const refused = refusal(error);
    print({ ...event, at, event: refused ? "refused" : "failed", state: refused?.sqlstate ?? error.code, error: String(error) });
    throw error;
  }
}

export const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 10 });
pool.on("error", () => undefined); // the proxy restarts
process.on("uncaughtException", (error) => console.error("uncaught:", error));
process.on("unhandledRejection", (error) => console.error("unhandled:", error));
