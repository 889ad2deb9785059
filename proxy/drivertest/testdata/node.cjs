// What node-postgres does; main_test.go says what the lines mean.
"use strict";
const { Client, Pool } = require("pg");
const { from: copyFrom, to: copyTo } = require("pg-copy-streams");
const { pipeline } = require("node:stream/promises");
const { Readable, Writable } = require("node:stream");

const config = { options: process.env.PGOPTIONS || undefined, ssl: false };

async function report(kind, name, act) {
  let result;
  try {
    result = JSON.stringify(await act());
  } catch (e) {
    if (!e.code) throw e;
    result = "error " + e.code + (e.position ? " at " + e.position : "");
  }
  console.log(kind, name + ":", result);
}

async function main() {
  const client = new Client(config);
  await client.connect();
  const rows = async (...args) => (await client.query(...args)).rows;

  await report("R", "select", () => rows("SELECT 1 + $1::int AS n, $2::text AS s", [1, "ü"]));
  await report("R", "simple", () => rows("SELECT 1 AS one"));
  await report("W", "insert", async () => (await client.query("INSERT INTO t VALUES ($1, $2)", [1, "a"])).rowCount);
  await report("W", "simple insert", async () => (await client.query("INSERT INTO t VALUES (2, 'b')")).rowCount);
  await report("W", "returning", () => rows("INSERT INTO t VALUES (3, $1) RETURNING *", ["c"]));
  await report("W", "function", () => rows("SELECT write_one(4)"));
  await report("W", "several", async () => (await client.query("INSERT INTO t VALUES (5, 'd'); INSERT INTO t VALUES (6, 'e'); SELECT count(*) FROM t")).map((r) => r.command));
  await report("W", "transaction", async () => {
    await client.query("BEGIN");
    try {
      await client.query("INSERT INTO t VALUES ($1, $2)", [10, "tx"]);
      await client.query("SAVEPOINT s");
      await client.query("DELETE FROM t");
      await client.query("ROLLBACK TO SAVEPOINT s");
      const result = await rows("UPDATE t SET v = $1 WHERE id = 10 RETURNING v", ["Ü"]);
      await client.query("COMMIT");
      return result;
    } catch (e) {
      await client.query("ROLLBACK");
      throw e;
    }
  });
  await report("W", "prepared", async () => {
    const ids = [];
    for (let i = 0; i < 8; i++) {
      ids.push(...(await rows({ name: "upsert", text: "INSERT INTO t VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id", values: [20 + (i % 2), "p"] })));
    }
    return ids;
  });
  await report("R", "prepared read", async () => {
    for (let i = 0; i < 8; i++) await rows({ name: "read", text: "SELECT $1::int AS n", values: [i] });
    return "done";
  });
  await report("W", "many at once", async () => {
    const all = await Promise.allSettled(Array.from({ length: 50 }, (_, i) => client.query("INSERT INTO t VALUES ($1, 'q')", [100 + i])));
    const bad = all.find((r) => r.status === "rejected");
    if (bad) throw bad.reason;
    return all.length;
  });
  await report("W", "large", () => rows("INSERT INTO t VALUES (7, $1) RETURNING length(v)", ["x".repeat(1000000)]));
  await report("W", "copy in", async () => {
    const lines = Array.from({ length: 2000 }, (_, i) => `${1000 + i}\trow\n`);
    await pipeline(Readable.from(lines), client.query(copyFrom("COPY t FROM STDIN")));
    return "done";
  });
  await report("E", "copy fails", async () => pipeline(Readable.from(["no number\tx\n", "1\ty\n"]), client.query(copyFrom("COPY t FROM STDIN"))));
  await report("R", "copy out", async () => {
    let n = 0;
    const count = new Writable({ write(chunk, _, done) { n += chunk.length; done(); } });
    await pipeline(client.query(copyTo("COPY (SELECT generate_series(1, 5000)) TO STDOUT")), count);
    return n;
  });
  await report("R", "syntax error", () => rows("SELECT 1 SELEC 2"));
  await report("R", "syntax error, extended", () => rows("SELECT $1 SELEC 2", [1]));
  await report("E", "position", () => rows("INSERT INTO t VALUES (9, nöpe)"));
  await report("E", "position, extended", () => rows("INSERT INTO t VALUES ($1, nöpe)", [9]));
  await report("E", "duplicate", () => rows("INSERT INTO t VALUES ($1, 'again')", [1]));
  await report("R", "division", () => rows("SELECT 1 / $1::int", [0]));
  await report("R", "cancel", async () => {
    const sleeping = rows("SELECT pg_sleep(60)");
    sleeping.catch(() => {});
    const other = new Client({ port: Number(process.env.DIRECT_PORT), ssl: false });
    await other.connect();
    for (;;) {
      const found = await other.query("SELECT count(*)::int AS n FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = $1", [client.processID]);
      if (found.rows[0].n === 1) break;
    }
    await other.end();
    const canceller = new Client(config);
    canceller.on("error", () => {});
    canceller.processID = client.processID;
    canceller.secretKey = client.secretKey;
    const con = canceller.connection;
    con.connect(canceller.port, canceller.host);
    con.on("connect", () => con.cancel(client.processID, client.secretKey));
    return sleeping;
  });
  await report("R", "alive", () => rows("SELECT 'alive' AS it"));
  await report("R", "notify", async () => {
    const heard = new Promise((resolve) => client.once("notification", (m) => resolve([m.channel, m.payload])));
    await client.query("LISTEN news");
    const other = new Client({ port: Number(process.env.DIRECT_PORT), ssl: false });
    await other.connect();
    await other.query("NOTIFY news, 'hello'");
    await other.end();
    return heard;
  });
  await report("W", "own notify", async () => {
    await client.query("SELECT pg_notify('own', 'x')");
    return "done";
  });
  await client.end();

  await report("W", "pool", async () => {
    const pool = new Pool({ ...config, max: 4 });
    try {
      const all = await Promise.all(Array.from({ length: 20 }, (_, i) => pool.query("INSERT INTO t VALUES ($1, 'pool') RETURNING id", [500 + i])));
      return all.length;
    } finally {
      await pool.end();
    }
  });
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
