// Does what the cases say with the client for TypeScript. Each line of its input is a step, and
// each line of its output what came of it.
import { register } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import pg from "pg";
import * as wirefence from "wirefence";

if (process.argv.includes("without pg")) {
  // The client doesn't find it, and this program does.
  register(`data:text/javascript,export async function resolve(name, from, next) {
    if (name === "pg" && from.parentURL.includes("/wirefence/")) throw new Error("it is not installed");
    return next(name, from);
  }`);
}

type Step = Record<string, any>;
type Outcome = Record<string, unknown>;

const name = process.env["NAME"]!;
const started = performance.now();
const seconds = (): number => (performance.now() - started) / 1000;
let suspended = 0;
let lease: wirefence.Lease;
let began = 0;
let ended = 0;

function clientOf(step: Step): wirefence.Client {
  const api = process.env["API"]!;
  return new wirefence.Client(api, {
    token: api.startsWith("http") ? (step["token"] ?? process.env["API_TOKEN"]) : undefined,
    holder: name,
    ttl: step["ttl"],
    maxHold: step["max_hold"] ?? 86400,
    timeout: 10,
    clock: () => seconds() + suspended,
  });
}

const fails = new Error("it fails");

const steps: Record<string, (step: Step) => Promise<Outcome>> = {
  async acquire(step) {
    const client = clientOf(step);
    began = seconds();
    lease = await client.acquire(step["resource"], { wait: step["wait"] ?? 0, idempotencyKey: step["key"] });
    lease.signal.addEventListener("abort", () => (ended = seconds()));
    return {
      granted: true,
      token: lease.token.toString(),
      fence: lease.fence,
      comment: lease.comment(),
      grant_id: lease.grantId,
      remaining: lease.remaining(),
    };
  },
  async check() {
    try {
      lease.check();
      return { held: true };
    } catch (error) {
      return { held: false, cause: (error as wirefence.LeaseLost).reason };
    }
  },
  async await_end(step) {
    await sleep(step["within"] * 1000, undefined, { signal: lease.signal }).catch(() => undefined);
    return lease.signal.aborted ? { cause: lease.signal.reason.reason, at: ended - began } : { error: "not ended" };
  },
  async release() {
    await lease.release();
    return { released: true };
  },
  async keep(step) {
    await lease.keep(step["keep_for"]);
    return { given_up: true };
  },
  // Works in a block with a lease, and fails if the step says so.
  async run(step) {
    const work = async () => {
      await sleep((step["works"] ?? 0) * 1000);
      if (step["fails"]) throw fails;
    };
    await clientOf(step)
      .withLease(step["resource"], { keepFor: step["keep_for"] }, work)
      .catch((error: unknown) => {
        if (error !== fails) throw error;
      });
    return { ran: true };
  },
  async remaining() {
    return { remaining: lease.remaining() };
  },
  async suspend(step) {
    suspended += step["seconds"];
    return {};
  },
  async write(step) {
    const via = step["via"] ?? "comment";
    const fence = step["rows"] ? claimsOf(step) : lease;
    const insert = "INSERT INTO orders (item) VALUES ('book')";
    await session(via === "options" ? fence.options() : "", async (connection) => {
      if (via === "comment") return connection.query(insert + fence.comment());
      await connection.query("BEGIN");
      if (via === "set_local") await connection.query(fence.setLocal());
      await connection.query(insert);
      return connection.query("COMMIT");
    });
    return { written: true };
  },
  async claims(step) {
    const made = claimsOf(step);
    return { fence: made.fence, comment: made.comment(), set_local: made.setLocal() };
  },
  async sql(step) {
    await session("", (connection) => connection.query(step["sql"]));
    return {};
  },
};

function claimsOf(step: Step): wirefence.Claims {
  return new wirefence.Claims(step["class"], step["rows"] ?? Array.from({ length: step["count"] }, (_, i) => [i + 1, "1"]));
}

async function session(options: string, work: (connection: pg.Client) => Promise<unknown>): Promise<void> {
  const connection = new pg.Client({ connectionString: process.env["DATABASE_URL"], ...(options && { options }) });
  connection.on("error", () => undefined);
  await wirefence.refusals(() => connection.connect());
  try {
    await wirefence.refusals(() => work(connection));
  } finally {
    await connection.end();
  }
}

function failure(error: unknown): Outcome {
  if (error instanceof wirefence.Refused) {
    const { sqlstate, condition, message, detail, hint } = error;
    return { error: error.name, sqlstate, condition, message, detail, hint };
  }
  if (error instanceof pg.DatabaseError) return { error: "other", sqlstate: error.code };
  if (error instanceof wirefence.LeaseHeld) return { error: "held", held_by: error.heldBy };
  if (error instanceof wirefence.LeaseLost) return { error: "lost", cause: error.reason };
  if (error instanceof wirefence.Unavailable) return { error: "unavailable" };
  if (error instanceof RangeError || (error as wirefence.ApiError).type === "invalid-request") return { error: "invalid" };
  if (error instanceof wirefence.ApiError) return { error: "refused", type: error.type };
  throw error;
}

for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line) as Step;
  const before = seconds();
  let outcome: Outcome;
  try {
    outcome = await steps[step["do"]]!(step);
  } catch (error) {
    console.error(`${name}: ${step["do"]}:`, error);
    outcome = failure(error);
  }
  console.log(JSON.stringify({ ...outcome, took: seconds() - before }));
}
