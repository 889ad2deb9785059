// A worker of Graphile Worker; with the argument install it installs the queue.
import { run, runMigrations } from "graphile-worker";

import { finish } from "./finish-graphile.mjs";
import { act, concurrency, name, pool, report, took } from "./told.mjs";

if (process.argv[2] === "install") {
  await runMigrations({ pgPool: pool });
  process.exit(0);
}
const taskList = {
  async work(_payload, { job }) {
    const event = took(job.id, job.locked_at.getTime());
    if ((await act()) === "retry") throw new Error("told to retry");
    await report(event, () =>
      finish(pool, job, (open) => open.query("INSERT INTO results (job_id, result) VALUES ($1, $2)", [job.id, `${name}/${event.claim}`])),
    );
  },
};
for (;;) {
  try {
    const runner = await run({ pgPool: pool, concurrency, pollInterval: 200, taskList, noHandleSignals: true });
    await runner.promise;
  } catch (error) {
    console.error(error.message); // the proxy may be restarting
  }
  await new Promise((done) => setTimeout(done, 100));
}
