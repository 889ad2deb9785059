// Writes to a guarded table under a lease that was taken by SQL, by each way to put the fence into a
// transaction: DATABASE_URL is of an application's role, LEASES_URL of one with wirefence_issuer.
import assert from "node:assert/strict";

import pg from "pg";
import postgres from "postgres";
import { Client, refusal, StaleToken, TokenRequired, type Lease } from "wirefence";
import * as fencedPg from "wirefence/pg";
import * as fencedPostgres from "wirefence/postgres";

const nightly = "nightly ä%'"; // guards totals
const insert = "INSERT INTO totals (host) VALUES ('100%')";
const twice = "INSERT INTO totals (id) SELECT min(id) FROM totals"; // fails

const pool = new pg.Pool({ connectionString: process.env["DATABASE_URL"], max: 1 });
const sql = postgres(process.env["DATABASE_URL"]!, { max: 1, ssl: false, prepare: false, onnotice: () => undefined });
const operator = new pg.Client(process.env["LEASES_URL"]);
await operator.connect();

const hooks: ((lease: Lease) => Promise<unknown>)[] = [
  (lease) =>
    fencedPg.transaction(pool, lease, async (open) => {
      await open.query(insert);
      await open.query("SAVEPOINT one");
      await assert.rejects(open.query(twice), { code: "23505" });
      await open.query("ROLLBACK TO one");
      await open.query(insert);
    }),
  (lease) =>
    fencedPostgres.transaction(sql, lease, async (open) => {
      await open.unsafe(insert);
      await assert.rejects(open.savepoint((inner) => inner.unsafe(twice)), { code: "23505" });
      await open.unsafe(insert);
    }),
];

// Ways past a hook.
const past: Record<string, (lease: Lease) => Promise<unknown>> = {
  "`pool.connect()`": async (lease) => {
    void fencedPg.fenced(pool, lease);
    const own = await pool.connect();
    return own.query(insert).finally(() => own.release());
  },
  "a query of the pool's own in `work`": (lease) => {
    const other = new pg.Pool({ connectionString: process.env["DATABASE_URL"] });
    return fencedPg.transaction(other, lease, () => other.query(insert)).finally(() => other.end());
  },
  "a query of `sql` itself in `work`": (lease) => {
    const other = postgres(process.env["DATABASE_URL"]!, { max: 2, ssl: false, prepare: false });
    return fencedPostgres.transaction(other, lease, async () => other.unsafe(insert)).finally(() => other.end());
  },
};

const client = new Client(process.env["LEASES_URL"]!, { ttl: 60 });
for (const hook of hooks) {
  await client.withLease(nightly, { wait: 10 }, async (lease) => {
    await hook(lease);
    for (const unfenced of [() => pool.query(insert), () => sql.unsafe(insert)]) {
      await assert.rejects(async () => unfenced(), (error) => refusal(error) instanceof TokenRequired);
    }
    await operator.query("SELECT wirefence.revoke($1)", [nightly]);
    await assert.rejects(hook(lease), StaleToken);
  });
}
for (const [way, write] of Object.entries(past)) {
  const refused = (error: unknown): boolean => refusal(error) instanceof TokenRequired || error instanceof TokenRequired;
  await client.withLease(nightly, { wait: 10 }, (lease) => assert.rejects(write(lease), refused, way));
}
await Promise.all([pool.end(), sql.end(), operator.end()]);
