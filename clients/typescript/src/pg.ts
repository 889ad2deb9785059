/** Fences for node-postgres (`pg`). */
import { refusals, WirefenceError } from "./errors.js";
import type { Fence } from "./fence.js";

/** What is used of a Client of `pg`, whose own types fit. */
export interface Queryable {
  query(text: any, values?: any): Promise<any>;
}

/** What is used of a client of a pool. */
export interface PooledClient extends Queryable {
  on(event: "error", listener: (error: Error) => void): unknown;
  off(event: "error", listener: (error: Error) => void): unknown;
  release(error?: boolean | Error): void;
}

/** A query as `pg` takes it. */
export interface QueryConfig {
  text: string;
  values?: unknown[];
  name?: string;
  [option: string]: unknown;
}

/**
 * Returns what runs queries on a client or a pool with the fence of a lease, or of claims, behind
 * each, as a comment. Refusals are thrown as Refused. Statements run without their names: pg never closes a
 * named one, and each grant's text is another. Use transaction to keep one plan for all grants.
 */
export function fenced<T extends Queryable>(target: T, lease: Fence): { query: T["query"] } {
  const comment = `\n${lease.comment()}`;
  const query = (text: string | QueryConfig, values?: unknown[], callback?: unknown): Promise<unknown> => {
    if (callback || typeof values === "function") throw new TypeError("fenced takes no callback: it returns a promise");
    if (typeof text === "string") return refusals(() => target.query(text + comment, values));
    if (typeof text?.text !== "string" || "submit" in text) throw new TypeError("fenced takes a text, or an object with a text");
    const config = { ...text, text: text.text + comment, name: undefined };
    return refusals(() => target.query(config, values));
  };
  return { query: query as T["query"] };
}

/**
 * Runs work in a transaction that carries the fence of a lease, or of claims. It throws a
 * LeaseLost, and begins nothing, if the lease has ended, and a WirefenceError if work has caught the error of a
 * statement, so that nothing was committed.
 */
export async function transaction<C extends PooledClient, T>(
  pool: { connect(): Promise<C> },
  lease: Fence,
  work: (client: C) => Promise<T>,
): Promise<T> {
  const client = await pool.connect();
  let broken: Error | undefined;
  const end = (error: Error): void => void (broken = error);
  client.on("error", end); // a session that ends between two queries would end the process
  try {
    lease.check();
    return await refusals(async () => {
      await client.query("BEGIN");
      try {
        await client.query("SELECT set_config('wirefence.token', $1, true)", [lease.fence]);
        const result = await work(client);
        const { command } = await client.query("COMMIT");
        // PostgreSQL answers ROLLBACK, without an error, if work has caught the error of a statement.
        if (command === "ROLLBACK") throw new WirefenceError("the transaction was rolled back, since a statement in it had failed");
        return result;
      } catch (error) {
        await client.query("ROLLBACK").catch(end);
        throw error;
      }
    });
  } finally {
    client.off("error", end);
    client.release(broken);
  }
}
