// Writes by each hook of the client for TypeScript, each time that it is told to. Each line that
// it prints is a hook with what came of its write.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import pg from "pg";
import postgres from "postgres";
import { Client, Refused, refusals, type Lease } from "wirefence";
import { fenced, transaction } from "wirefence/pg";
import * as fencedPostgres from "wirefence/postgres";

const url = process.env["DATABASE_URL"]!;
const pool = new pg.Pool({ connectionString: url, max: 1 });
const sql = postgres(url, { max: 1, ssl: false, onnotice: () => undefined });
const insert = "INSERT INTO orders (item) VALUES ($1)";

const hooks: Record<string, (lease: Lease) => Promise<unknown>> = {
  pg_text: (lease) => fenced(pool, lease).query("INSERT INTO orders (item) VALUES ('100%') -- said"),
  pg_values: (lease) => fenced(pool, lease).query(insert, ["book"]),
  pg_config: (lease) => fenced(pool, lease).query({ text: insert, values: ["book"], rowMode: "array" }),
  pg_named: (lease) => fenced(pool, lease).query({ name: "insert", text: insert, values: ["book"] }),
  pg_named_again: (lease) => fenced(pool, lease).query({ name: "insert", text: insert, values: ["book"] }),
  pg_transaction: (lease) => transaction(pool, lease, (client) => client.query(insert, ["book"])),
  pg_transaction_named: (lease) =>
    transaction(pool, lease, (client) => client.query({ name: "kept", text: insert, values: ["book"] })),
  postgres_transaction: (lease) =>
    fencedPostgres.transaction(sql, lease, (open) => open`INSERT INTO orders (item) VALUES (${"book"})`),
  postgres_comment: (lease) =>
    refusals(() => sql`INSERT INTO orders (item) VALUES (${"book"}) ${fencedPostgres.comment(sql, lease)}`),
};

// What runs behind the hooks is as it was before: nothing has stayed on a connection.
async function unfenced(): Promise<void> {
  await pool.query(insert, ["unfenced"]);
  await sql`INSERT INTO orders (item) VALUES ('unfenced')`;
  const variable = "SELECT current_setting('wirefence.token', true) AS carried";
  for (const rows of [(await pool.query(variable)).rows, await sql.unsafe(variable)]) {
    assert(!rows[0].carried, rows[0].carried);
  }
}

const client = new Client(process.env["API"]!, { token: process.env["API_TOKEN"]!, holder: "hooks", ttl: 600 });
await client.withLease("hook ä%", {}, async (lease) => {
  for await (const _ of createInterface({ input: process.stdin })) {
    for (const [hook, write] of Object.entries(hooks)) {
      let came = "written";
      try {
        await write(lease);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        assert(error.cause instanceof Error && error.detail.includes("hook"), error.detail);
        came = error.name;
      }
      console.log(JSON.stringify({ hook, came }));
    }
    // No fence's text stays prepared, where there would be one more for each grant.
    assert.deepEqual((await pool.query("SELECT name FROM pg_prepared_statements WHERE statement LIKE '%wirefence.token=%'")).rows, []);
    const cursor = { text: "SELECT 1", submit: () => undefined };
    assert.throws(() => fenced(pool, lease).query(cursor), TypeError);
    const callback = (): void => undefined;
    assert.throws(() => fenced(pool, lease).query(insert, ["book"], callback), TypeError);
    assert.throws(() => fenced(pool, lease).query("SELECT 1", callback), TypeError);
    const caught = transaction(pool, lease, (open) => open.query("SELECT 1/0").catch(() => undefined));
    await assert.rejects(caught, /rolled back/);
    // A session that ends while its transaction is idle, as a takeover ends it, is an error of
    // the next query, and doesn't end the process.
    const ended = transaction(pool, lease, async (open) => {
      await sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' AND usename = current_user AND datname = current_database()`;
      await sleep(300);
      return open.query(insert, ["book"]);
    });
    await assert.rejects(ended);
    await unfenced();
    console.log(JSON.stringify({ hook: "unfenced", came: "written" }));
  }
});
await pool.end();
await sql.end();
