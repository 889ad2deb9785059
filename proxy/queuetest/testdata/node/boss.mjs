// A worker of pg-boss; with the argument install it installs the queue, and named supervisor it
// only supervises.
import { PgBoss } from "pg-boss";

import { finish } from "./finish-boss.mjs";
import { act, concurrency, hurry, name, pool, report, took } from "./told.mjs";

const installs = process.argv[2] === "install";
const supervises = name === "supervisor";
const boss = new PgBoss({
  connectionString: process.env.DATABASE_URL,
  migrate: installs,
  supervise: supervises,
  superviseIntervalSeconds: 1,
  monitorIntervalSeconds: 1,
  schedule: false,
  max: 10,
});
boss.on("error", (error) => console.error("boss:", error.message));
// trying repeats what fails while the proxy restarts.
const trying = async (what) => {
  for (;;) {
    try {
      return await what();
    } catch (error) {
      if (installs) throw error;
      console.error(error.message);
      await new Promise((done) => setTimeout(done, 100));
    }
  }
};
await trying(() => boss.start());
if (installs) {
  await boss.createQueue("work");
  await boss.stop();
  process.exit(0);
}
if (!supervises) {
  const options = { includeMetadata: true, localConcurrency: concurrency * Math.min(hurry, 10), pollingIntervalSeconds: 0.5 };
  const work = async ([job]) => {
    const event = took(`${job.name}:${job.id}`, job.startedOn.getTime());
    switch (await act()) {
      case "retry":
        throw new Error("told to retry");
      case "cancel":
        await boss.cancel(job.name, job.id);
        return;
    }
    await report(event, () =>
      finish(boss, pool, job, (open) =>
        open.query("INSERT INTO results (queue, job_id, result) VALUES ($1, $2, $3)", [job.name, job.id, `${name}/${event.claim}`]),
      ),
    );
  };
  await trying(() => boss.work("work", options, work));
}
