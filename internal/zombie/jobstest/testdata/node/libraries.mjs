// Jobs around locks, and handlers of queues, as the libraries' READMEs show them. The argument is the
// library. A job ends when it is done.
import { Queue, Worker } from "bullmq";
import Redis from "ioredis";
import cron from "node-cron";
import pg from "pg";
import { PgBoss } from "pg-boss";
import Redlock from "redlock";

const [library, act] = process.argv.slice(2);
const pool = new pg.Pool();

// count reads, and writes what it has computed.
const count = async () => {
  const { rows } = await pool.query("SELECT orders FROM totals");
  await pool.query("UPDATE totals SET orders = $1", [rows[0].orders + 1]);
};

// charge must be done once a job.
const charge = () => pool.query("UPDATE totals SET orders = orders + 1");

const until = async (so) => {
  while (!(await so())) await new Promise((done) => setTimeout(done, 100));
};

const libraries = {
  redlock: async () => {
    const redlock = new Redlock([new Redis(process.env.REDIS)], { retryCount: 0 });
    redlock.on("error", () => {});
    await redlock.using(["nightly"], 60_000, async (signal) => {
      await count();
      if (signal.aborted) throw signal.error;
    });
  },

  // Of several hosts, each of which has the schedule, that runs it which gets the row.
  "node-cron": () =>
    new Promise((done, failed) => {
      const task = cron.schedule("* * * * * *", async () => {
        await task.stop();
        try {
          const { rowCount } = await pool.query("UPDATE cron_locks SET until = now() + interval '1 min' WHERE until < now()");
          if (rowCount === 1) {
            await count();
            await pool.query("UPDATE cron_locks SET until = now()");
          }
          done();
        } catch (error) {
          failed(error);
        }
      });
    }),

  // The version is read first, so it seems, and nothing is written if another has written since. But the
  // pool sends both queries at once, on two connections.
  "pg-pool": async () => {
    const { rowCount } = await pool.query("UPDATE cron_locks SET until = now() + interval '1 min' WHERE until < now()");
    if (rowCount !== 1) return;
    const [before, now] = await Promise.all([
      pool.query("SELECT version, (SELECT count(*) FROM generate_series(1, 2000000)) AS lines FROM totals"),
      pool.query("SELECT orders FROM totals"),
    ]);
    await pool.query("UPDATE totals SET orders = $1, version = version + 1 WHERE version = $2", [now.rows[0].orders + 1, before.rows[0].version]);
    await pool.query("UPDATE cron_locks SET until = now()");
  },

  // Expired jobs are found by a supervisor, which is told to by the argument.
  "pg-boss": async () => {
    const boss = new PgBoss({ host: process.env.PGHOST, migrate: act === "setup", schedule: false, supervise: act === "supervise", superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 });
    boss.on("error", (error) => console.error(error.message));
    await boss.start();
    if (act === "setup") {
      await boss.createQueue("nightly", { expireInSeconds: 2, retryLimit: 5 });
      await boss.send("nightly");
      return;
    }
    if (act !== "supervise") await boss.work("nightly", { pollingIntervalSeconds: 0.5 }, charge);
    await until(async () => {
      const { rows } = await pool.query("SELECT FROM pgboss.job WHERE state < 'completed' AND (state = 'active' OR $1)", [act !== "supervise"]);
      return rows.length === 0;
    });
    await boss.stop();
  },

  bullmq: async () => {
    const connection = new Redis(process.env.REDIS, { maxRetriesPerRequest: null });
    const queue = new Queue("nightly", { connection });
    if (act === "setup") {
      await queue.obliterate({ force: true });
      await queue.add("nightly", {});
      return;
    }
    const worker = new Worker("nightly", charge, { connection, lockDuration: 1000, stalledInterval: 500, maxStalledCount: 5 });
    worker.on("error", (error) => console.error(error.message));
    await until(async () => {
      const { waiting, active } = await queue.getJobCounts("waiting", "active");
      return waiting + active === 0;
    });
    await worker.close();
  },
};

await libraries[library]();
process.exit();
