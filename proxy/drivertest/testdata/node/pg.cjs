// What node-postgres' users do.
"use strict";
const { Client, Pool } = require("pg");
const { from: copyFrom, to: copyTo } = require("pg-copy-streams");
const { pipeline } = require("node:stream/promises");
const { Readable, Writable } = require("node:stream");
const { cancelled, report, serve, SLEEPS } = require("./runs.cjs");

// marked appends the run's comment to a text, or to that of a query's config.
const marked = (query, comment) => (typeof query === "string" ? query + comment : { ...query, text: query.text + comment });

serve(async ({ port, direct, database, security, ssl, options, set, comment }) => {
  const config = { port, database, ssl, options: options || undefined, enableChannelBinding: security === "binding" };
  const client = new Client(config);
  const other = new Client({ ...config, port: direct, options: undefined });
  let mechanism = "none";
  const respond = client.connection.sendSASLInitialResponseMessage;
  client.connection.sendSASLInitialResponseMessage = function (chosen, ...rest) {
    mechanism = chosen;
    return respond.call(this, chosen, ...rest);
  };
  await Promise.all([client.connect(), other.connect()]);
  await client.query(set);
  if (security === "binding" && mechanism !== "SCRAM-SHA-256-PLUS") throw new Error("bound to no channel: " + mechanism);
  const query = (q, values) => client.query(marked(q, comment), values);
  const rows = async (...args) => (await query(...args)).rows;

  await report("R", "select", () => rows("SELECT 1 + $1::int AS n, $2::text AS s", [1, "ü"]));
  await report("R", "simple", () => rows("SELECT 1 AS one"));
  await report("W", "insert", async () => (await query("INSERT INTO t VALUES ($1, $2)", [1, "a"])).rowCount);
  await report("W", "simple insert", async () => (await query("INSERT INTO t VALUES (2, 'b')")).rowCount);
  await report("W", "returning", () => rows("INSERT INTO t VALUES (3, $1) RETURNING *", ["c"]));
  await report("W", "function", () => rows("SELECT write_one(4)"));
  await report("W", "several", async () => (await query("INSERT INTO t VALUES (5, 'd'); INSERT INTO t VALUES (6, 'e'); SELECT count(*) FROM t")).map((r) => r.command));
  await report("W", "transaction", async () => {
    await query("BEGIN");
    try {
      await query("INSERT INTO t VALUES ($1, $2)", [10, "tx"]);
      await query("SAVEPOINT s");
      await query("DELETE FROM t");
      await query("ROLLBACK TO SAVEPOINT s");
      const result = await rows("UPDATE t SET v = $1 WHERE id = 10 RETURNING v", ["Ü"]);
      await query("COMMIT");
      return result;
    } catch (e) {
      await query("ROLLBACK");
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
    const all = await Promise.allSettled(Array.from({ length: 50 }, (_, i) => query("INSERT INTO t VALUES ($1, 'q')", [100 + i])));
    const bad = all.find((r) => r.status === "rejected");
    if (bad) throw bad.reason;
    return all.length;
  });
  await report("W", "large", () => rows("INSERT INTO t VALUES (7, $1) RETURNING length(v)", ["x".repeat(1000000)]));
  await report("W", "copy in", async () => {
    const lines = Array.from({ length: 2000 }, (_, i) => `${1000 + i}\trow\n`);
    await pipeline(Readable.from(lines), client.query(copyFrom("COPY t FROM STDIN" + comment)));
    return "done";
  });
  await report("E", "copy fails", async () => pipeline(Readable.from(["no number\tx\n", "1\ty\n"]), client.query(copyFrom("COPY t FROM STDIN" + comment))));
  await report("R", "copy out", async () => {
    let n = 0;
    const count = new Writable({ write(chunk, _, done) { n += chunk.length; done(); } });
    await pipeline(client.query(copyTo("COPY (SELECT generate_series(1, 5000)) TO STDOUT" + comment)), count);
    return n;
  });
  await report("W", "call", async () => (await query("CALL commit_one($1)", [90000])).command);
  await report("W", "vacuum", async () => (await query("VACUUM t")).command);
  await report("W", "concurrent index", async () => (await query("CREATE INDEX CONCURRENTLY ON t(id)")).command);
  await report("E", "syntax error", () => rows("SELECT 1 SELEC 2"));
  await report("E", "syntax error, extended", () => rows("SELECT $1 SELEC 2", [1]));
  await report("E", "position", () => rows("INSERT INTO t VALUES (9, nöpe)"));
  await report("E", "position, extended", () => rows("INSERT INTO t VALUES ($1, nöpe)", [9]));
  await report("E", "duplicate", () => rows("INSERT INTO t VALUES ($1, 'again')", [1]));
  await report("R", "division", () => rows("SELECT 1 / $1::int", [0]));
  await report("R", "cancel", async () => {
    const asleep = async () => (await other.query(SLEEPS)).rows[0].n > 0;
    return cancelled(rows("SELECT pg_sleep(60)"), asleep, () => {
      const canceller = new Client(config);
      canceller.on("error", () => {});
      const con = canceller.connection;
      con.on("error", () => {});
      con.connect(port, canceller.host);
      con.on("connect", () => ssl && con.requestSsl());
      con.on(ssl ? "sslconnect" : "connect", () => con.cancel(client.processID, client.secretKey));
    });
  });
  await report("R", "notify", async () => {
    await query("LISTEN news");
    const heard = new Promise((resolve) => client.once("notification", (m) => resolve([m.channel, m.payload])));
    await other.query("NOTIFY news, 'hello'");
    return heard;
  });
  await report("W", "own notify", async () => (await query("SELECT pg_notify('own', 'x')")).rowCount);
  await report("W", "serializable", async () => {
    await query("BEGIN ISOLATION LEVEL SERIALIZABLE");
    try {
      return (await query("INSERT INTO t VALUES ($1, 's')", [50])).rowCount;
    } finally {
      await query("COMMIT");
    }
  });
  await report("W", "pool", async () => {
    const pool = new Pool({ ...config, max: 4, onConnect: (c) => c.query(set) });
    try {
      const all = await Promise.allSettled(Array.from({ length: 20 }, (_, i) => pool.query("INSERT INTO t VALUES ($1, 'pool') RETURNING id" + comment, [500 + i])));
      const bad = all.find((r) => r.status === "rejected");
      if (bad) throw bad.reason;
      return all.length;
    } finally {
      await pool.end();
    }
  });
  await report("W", "reset", async () => {
    await client.query("DISCARD ALL");
    await client.query(set);
    return (await query("INSERT INTO t VALUES ($1, 'behind the reset')", [60])).rowCount;
  });
  await report("R", "alive", () => rows("SELECT 'alive' AS it"));
  await Promise.all([client.end(), other.end()]);
});
