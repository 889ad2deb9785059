/** Fences for postgres.js (`postgres`). */
import { refusals } from "./errors.js";
import type { Fence } from "./fence.js";

/** What is used of the `sql` of postgres.js, whose own types fit. */
export interface Sql {
  begin(work: (transaction: any) => any): Promise<any>;
  unsafe(text: string): any;
}

// begin is overloaded there, and the last form has options before the work.
type Transaction<S> = S extends { begin(options: string, work: (transaction: infer X) => any): any } ? X : never;

/**
 * Runs work in a transaction that carries the fence of a lease, or of claims. It throws a LeaseLost, and
 * begins nothing, if the lease has ended. Refusals are thrown as Refused.
 */
export function transaction<S extends Sql, T>(
  sql: S,
  lease: Fence,
  work: (transaction: Transaction<S>) => Promise<T>,
): Promise<T> {
  return refusals(async () => {
    lease.check();
    return (await sql.begin(async (open: any) => {
      await open`SELECT set_config('wirefence.token', ${lease.fence}, true)`;
      return work(open);
    })) as T;
  });
}

/**
 * Returns the fence of a lease, or of claims, as a part of a query, for statements outside of a transaction:
 *
 *     await refusals(() => sql`INSERT INTO orders (item) VALUES (${item}) ${comment(sql, lease)}`);
 */
export function comment<S extends Sql>(sql: S, lease: Fence): ReturnType<S["unsafe"]> {
  return sql.unsafe(lease.comment());
}
