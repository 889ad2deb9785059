// What postgres.js' users do.
"use strict";
const postgres = require("postgres");
const { pipeline } = require("node:stream/promises");
const { Readable } = require("node:stream");
const { cancelled, report, serve, SLEEPS } = require("./runs.cjs");

serve(async ({ port, direct, database, ssl, options, set, comment }) => {
  const common = { host: process.env.PGHOST, user: process.env.PGUSER, pass: process.env.PGPASSWORD, database, ssl, onnotice() {}, fetch_types: false };
  const sql = postgres({ ...common, port, max: 1, idle_timeout: 0, connection: options ? { options } : {} });
  const listener = postgres({ ...common, port });
  const other = postgres({ ...common, port: direct, max: 1 });
  await sql.unsafe(set);
  // Comments must be in the text, so texts are put together as sql.unsafe takes
  // them; it is what sql`` itself sends.
  const run = (on, text, values = [], how = {}) => on.unsafe(text + comment, values, { prepare: true, ...how });
  const query = (text, values, how) => run(sql, text, values, how);

  await report("R", "select", () => query("SELECT 1 + $1::int AS n, $2::text AS s", [1, "ü"]));
  await report("R", "simple", () => sql.unsafe("SELECT 1 AS one" + comment).simple());
  await report("W", "insert", async () => (await query("INSERT INTO t VALUES ($1, $2)", [1, "a"])).count);
  await report("W", "simple insert", async () => (await sql.unsafe("INSERT INTO t VALUES (2, 'b')" + comment).simple()).count);
  await report("W", "returning", () => query("INSERT INTO t VALUES (3, $1) RETURNING *", ["c"]));
  await report("W", "function", () => query("SELECT write_one($1)", [4]));
  await report("W", "several", async () => (await sql.unsafe("INSERT INTO t VALUES (5, 'd'); INSERT INTO t VALUES (6, 'e'); SELECT 1 AS one" + comment).simple()).length);
  await report("W", "tagged", async () => (await sql`INSERT INTO t ${sql([{ id: 5000, v: "a" }, { id: 5001, v: "b" }])} ${sql.unsafe(comment)}`).count);
  await report("W", "transaction", () =>
    sql.begin(async (tx) => {
      await run(tx, "INSERT INTO t VALUES ($1, 'tx')", [10]);
      await tx
        .savepoint(async (inner) => {
          await run(inner, "DELETE FROM t");
          throw new Error("roll back");
        })
        .catch((e) => {
          if (e.message !== "roll back") throw e;
        });
      return run(tx, "UPDATE t SET v = $1 WHERE id = 10 RETURNING v", ["Ü"]);
    }));
  await report("W", "serializable", () => sql.begin("isolation level serializable", (tx) => run(tx, "INSERT INTO t VALUES (11, 's') RETURNING id")));
  await report("R", "read only", () => sql.begin("read only", (tx) => run(tx, "SELECT count(*) >= 0 AS any FROM t")));
  await report("W", "pipelined transaction", () => sql.begin((tx) => [run(tx, "INSERT INTO t VALUES ($1, 'x') RETURNING id", [12]), run(tx, "INSERT INTO t VALUES ($1, 'x') RETURNING id", [13])]));
  await report("W", "prepared", async () => {
    const ids = [];
    for (let i = 0; i < 8; i++) ids.push((await query("INSERT INTO t VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id", [20 + (i % 2), "p"]))[0].id);
    return ids;
  });
  await report("W", "unprepared", async () => (await query("INSERT INTO t VALUES ($1, 'u')", [30], { prepare: false })).count);
  await report("W", "many at once", async () => {
    const all = await Promise.allSettled(Array.from({ length: 50 }, (_, i) => query("INSERT INTO t VALUES ($1, 'q')", [100 + i])));
    const bad = all.find((r) => r.status === "rejected");
    if (bad) throw bad.reason;
    return all.length;
  });
  await report("R", "cursor", async () => {
    const chunks = [];
    for await (const rows of query("SELECT generate_series(1, 100) AS n").cursor(30)) chunks.push(rows.length);
    return chunks;
  });
  await report("R", "cursor given up", async () => {
    for await (const [row] of query("SELECT generate_series(1, 100) AS n").cursor(1)) if (row.n === 3) break;
    return "done";
  });
  await report("W", "large", () => query("INSERT INTO t VALUES (40, $1) RETURNING length(v)", ["x".repeat(1000000)]));
  await report("W", "copy in", async () => {
    const rows = Array.from({ length: 2000 }, (_, i) => `${1000 + i}\trow\n`);
    await pipeline(Readable.from(rows), await sql.unsafe("COPY t FROM STDIN" + comment).writable());
    return "done";
  });
  await report("R", "copy out", async () => {
    let n = 0; // of no more than the stream buffers: at the end the driver leaves a full one's socket paused
    for await (const chunk of await sql.unsafe("COPY (SELECT generate_series(1, 1000)) TO STDOUT" + comment).readable()) n += chunk.length;
    return n;
  });
  await report("W", "call", async () => (await query("CALL commit_one($1)", [90000])).command);
  await report("W", "vacuum", async () => (await query("VACUUM t")).command);
  await report("W", "concurrent index", async () => (await query("CREATE INDEX CONCURRENTLY ON t(id)")).command);
  await report("E", "syntax error", () => query("SELECT 1 SELEC 2"));
  await report("E", "position", () => query("INSERT INTO t VALUES ($1, nöpe)", [9]));
  await report("E", "duplicate", () => query("INSERT INTO t VALUES ($1, 'a'), ($2, 'a')", [1, 1]));
  await report("R", "division", () => query("SELECT 1 / $1::int", [0]));
  await report("R", "cancel", async () => {
    const sleeping = query("SELECT pg_sleep(60)");
    return cancelled(sleeping, async () => (await other.unsafe(SLEEPS))[0].n > 0, () => sleeping.cancel());
  });
  await report("S", "notify", async () => {
    let hear; // the driver listens on a connection of its own, which no SET reaches: this one has no fence
    const heard = new Promise((resolve) => (hear = resolve));
    const listening = await listener.listen("news", hear);
    await other.notify("news", "hello");
    const payload = await heard;
    await listening.unlisten();
    return payload;
  });
  await report("W", "own notify", () => query("SELECT pg_notify('own', 'x')"));
  await report("R", "alive", () => query("SELECT 'alive' AS it"));
  await Promise.all([sql.end(), listener.end(), other.end()]);
});
