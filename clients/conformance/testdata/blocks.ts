// Uses leases of the client for TypeScript in blocks. It ends with 0 if all is as it is
// documented.
import assert from "node:assert/strict";
import { syncBuiltinESMExports } from "node:module";
import os from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

import { Client, LeaseHeld, LeaseLost } from "wirefence";

const api = process.env["API"]!;
const token = process.env["API_TOKEN"]!;
const client = new Client(api, { token: async () => token, holder: "blocks", ttl: 5 });

async function revoke(resource: string): Promise<void> {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  const answer = await fetch(`${api}/v1/resources/${resource}/revoke`, { method: "POST", headers, body: "{}" });
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
assert.throws(() => new Client("http://me:secret@127.0.0.1:1"), (error: Error) => !error.message.includes("secret"));

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
