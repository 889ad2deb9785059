// How a program for Node is run: a line of input starts a run, its lines and a
// dot end it. way_test.go says what the lines mean.
"use strict";
const fs = require("node:fs");
const readline = require("node:readline");

const SLEEPS = "SELECT count(*)::int AS n FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";

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

// cancelled cancels a query once it is asleep. A stale one is refused at once.
async function cancelled(sleeping, asleep, cancel) {
  let ended = false;
  sleeping.catch(() => (ended = true));
  while (!ended && !(await asleep()));
  if (!ended) await cancel();
  return sleeping;
}

async function serve(scenario) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [port, direct, database, security, options, set, comment] = line.split("\t");
    const ssl = security === "plain" ? false : { ca: fs.readFileSync(process.env.ROOT_CERT, "utf8") };
    await scenario({ port: Number(port), direct: Number(direct), database, security, ssl, options, set, comment });
    console.log(".");
  }
}

exports.cancelled = cancelled;
exports.report = report;
exports.SLEEPS = SLEEPS;
exports.serve = (scenario) =>
  serve(scenario).catch((e) => {
    console.error(e);
    process.exit(1);
  });
