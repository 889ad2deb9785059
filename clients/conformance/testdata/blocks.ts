// Uses leases of the client for TypeScript in blocks. It ends with 0 if all is as it is
// documented.
import assert from "node:assert/strict";
import { syncBuiltinESMExports } from "node:module";
import os from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

import pg from "pg";
import { ApiError, Client, LeaseHeld, LeaseLost, Unavailable } from "wirefence";

const api = process.env["API"]!;
const token = process.env["API_TOKEN"]!;
const bySQL = api.startsWith("postgresql:");
const client = new Client(api, { ...(!bySQL && { token: async () => token }), holder: "blocks", ttl: 5 });

async function revoke(resource: string): Promise<void> {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  const answer = await fetch(`${process.env["ADMIN"]}/v1/resources/${resource}/revoke`, { method: "POST", headers, body: "{}" });
  assert.equal(answer.status, 200);
}

async function isFree(resource: string): Promise<boolean> {
  await using lease = await client.acquire(resource);
  lease.check();
  return true;
}

const lostBy = (reason: string) => (error: unknown) => error instanceof LeaseLost && error.reason === reason;

// A block frees the resource, whatever its end.
{
  await using lease = await client.acquire("using");
  const holder = lease.grantId.split("/")[0] + "/";
  await assert.rejects(isFree("using"), (error: unknown) => error instanceof LeaseHeld && error.heldBy.startsWith(holder) && !inspect([error, lease]).includes(lease.grantId));
}
assert(await isFree("using"));
assert.equal(await client.withLease("with", {}, async (lease) => lease.token), 1n);
await assert.rejects(client.withLease("with", {}, () => Promise.reject(new Error("mine"))), /mine/);
assert(await isFree("with"));

// A loss ends what heeds the signal, and is told.
const began = performance.now();
await assert.rejects(
  client.withLease("lost", {}, async (lease) => {
    await revoke("lost");
    await sleep(30_000, undefined, { signal: lease.signal });
  }),
  (error: unknown) => error instanceof Error && lostBy("revoked")(error.cause),
);
assert(performance.now() - began < 10_000);
await assert.rejects(
  client.withLease("told", {}, async (lease) => {
    await revoke("told");
    await new Promise((done) => lease.signal.addEventListener("abort", done));
    assert.throws(() => lease.check(), lostBy("revoked"));
    assert.equal(lease.remaining(), 0);
  }),
  lostBy("revoked"),
);

// A wait that is aborted leaves no lease.
await client.withLease("waited", {}, async () => {
  const abort = new AbortController();
  const waiting = client.acquire("waited", { wait: 30, signal: abort.signal });
  setTimeout(() => abort.abort(new Error("no longer")), 300);
  await assert.rejects(waiting, /no longer/);
});
await client.withLease("waited", { wait: 30 }, async (lease) => lease.check());

// A password isn't told.
for (const url of ["http://me:secret@127.0.0.1:1", " postgresql://me:secret@127.0.0.1/app", "postgres+pg://me:secret@127.0.0.1/app", "postgresql://me:secret@127.0.0.1:port/app"]) {
  assert.throws(() => new Client(url), (error: Error) => !inspect(error).includes("secret"));
}

// An error in a renewal stops no renewals.
{
  await using lease = await client.acquire("renewed");
  const { timeout } = AbortSignal;
  let calls = 0;
  AbortSignal.timeout = (milliseconds) => {
    if (++calls <= 2) throw new TypeError("no timer");
    return timeout.call(AbortSignal, milliseconds);
  };
  await sleep(6000);
  assert(calls > 2);
  lease.check();
  AbortSignal.timeout = timeout;
}

if (bySQL) {
  const sessions = async (): Promise<{ pid: number; query: string }[]> => {
    const looking = new pg.Client(api);
    await looking.connect();
    const sql = "SELECT pid, query FROM pg_stat_activity WHERE application_name = 'mine' AND datname = current_database()";
    const { rows } = await looking.query(sql).finally(() => looking.end());
    return rows;
  };
  const terminate = async (): Promise<number> => {
    const { pid } = (await sessions())[0]!;
    const ending = new pg.Client(api);
    await ending.connect();
    await ending.query("SELECT pg_terminate_backend($1)", [pid]).finally(() => ending.end());
    return pid;
  };

  // A lease by SQL has a session of its own, which comes again after it was ended.
  const own = new Client(`${api}&application_name=mine`, { ttl: 3 });
  const lease = await own.acquire("session");
  assert(!(await sessions())[0]!.query.includes(lease.grantId));
  const ended = await terminate();
  await sleep(3000);
  lease.check();
  assert.notEqual(await terminate(), ended);
  assert(await lease.release());
  assert(await isFree("session"));
  for (let tries = 0; (await sessions()).length; tries++) {
    assert(tries < 100);
    await sleep(100);
  }

  // A server that refuses says why, and no time mends that.
  for (const [url, told] of [
    [api.replace("leases@", "app@"), "GRANT wirefence_issuer"],
    [api.replace(/db_\d+/, "postgres"), "wirefence"],
    [api.replace(/db_\d+/, "no_such_database"), "no_such_database"],
  ] as const) {
    const refused = new Client(url).acquire("refused", { wait: 30 });
    await assert.rejects(refused, (error: unknown) => error instanceof ApiError && !(error instanceof Unavailable) && error.message.includes(told));
  }
  assert.throws(() => new Client(api, { token }), TypeError);
}

// The clock goes evenly where the uptime comes in whole seconds, and a suspension counts.
{
  const { steadyClock } = await import(new URL("node_modules/wirefence/dist/clock.js", import.meta.url).href);
  const { uptime } = os;
  let awake = 1000.95;
  let suspended = 0;
  os.uptime = () => Math.floor(awake + suspended);
  // Node 18 lets nobody assign it.
  Object.defineProperty(performance, "now", { value: () => awake * 1000, configurable: true });
  syncBuiltinESMExports();
  const clock = steadyClock();
  const start = clock();
  for (let i = 1; i <= 40; i++) {
    awake += 0.1;
    assert(Math.abs(clock() - start - i / 10) < 1e-6, `${clock() - start} after ${i / 10} s`);
  }
  suspended = 60;
  assert(clock() - start > 62);
  os.uptime = uptime;
  delete (performance as { now?: unknown }).now;
  syncBuiltinESMExports();
}

console.log("all as documented");
