// Writes each line of its input to the table orders, while it has the lease "orders".
//
//     API=http://127.0.0.1:9433 DATABASE_URL=postgres://app@127.0.0.1:6433/app node worker.js
//
// It exits with 75 if the lease could not be acquired, and with 76 if it was lost.
import { createInterface } from "node:readline";

import pg from "pg";
import { Client, LeaseHeld, LeaseLost, StaleToken, type Lease } from "wirefence";
import { fenced } from "wirefence/pg";

async function work(lease: Lease): Promise<void> {
  console.log("holding", lease.fence);
  const session = new pg.Client(process.env["DATABASE_URL"]);
  session.on("error", () => undefined); // the next query tells
  await session.connect();
  try {
    const orders = fenced(session, lease);
    const items = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    for (;;) {
      lease.check(); // the process may be stopped right behind it: then the fence counts
      console.log("ready");
      const { value: item, done } = await items.next();
      if (done) return;
      await orders.query("INSERT INTO orders (item) VALUES ($1)", [item]);
      console.log("wrote", item);
    }
  } finally {
    await session.end();
  }
}

const { API = "http://127.0.0.1:9433", API_TOKEN: token = "", TTL: ttl = "15" } = process.env;
const client = new Client(API, { token, ttl: Number(ttl) });
try {
  await client.withLease("orders", { wait: 60 }, work);
  process.stdin.destroy();
} catch (error) {
  if (error instanceof LeaseHeld) {
    console.error("not acquired:", error.message);
    process.exit(75);
  }
  if (error instanceof StaleToken) {
    console.error("stopped, since another has taken over:", error.message, error.detail);
    process.exit(76);
  }
  if (error instanceof LeaseLost) {
    console.error("stopped:", error.message);
    process.exit(76);
  }
  throw error;
}
