import { createHash } from "node:crypto";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

import { ApiError, LeaseHeld, Unavailable, WirefenceError, type Cause } from "./errors.js";
import { encodeResource } from "./fence.js";
import type { Source, Term } from "./lease.js";

const defaultTtl = 15; // seconds

const grace = 5; // seconds that a request nobody waits for has to end

type Rows = Record<string, string | null>[];

/** What is used of a session, of pg's or postgres.js'. */
interface Connection {
  query(text: string, values: readonly unknown[]): Promise<Rows>;
  end(): Promise<void>;
}

// Where a resource's preempt_after ends nobody, lock_timeout bounds the wait for older transactions.
const acquireSQL = `SELECT a.token::text, a.held_by, extract(epoch FROM a.expires_at - clock_timestamp())::text AS held_for
FROM set_config('lock_timeout', $1, true) AS bound,
     wirefence.acquire($2, CASE WHEN bound <> '' THEN $3 END, make_interval(secs => $4::float8), $5) AS a`;

// Returns why the lease is lost, null if it isn't.
const renewSQL = `SELECT CASE WHEN l.former OR coalesce(l.last_token, 0) < t.token THEN 'failover'
    WHEN l.last_token > t.token AND l.holder IS NULL THEN 'revoked'
    WHEN l.last_token > t.token OR NOT wirefence.renew(t.resource, $1, make_interval(secs => $2::float8)) THEN 'lost' END AS cause
FROM (SELECT $3::text, $4::bigint) AS t (resource, token)
LEFT JOIN (SELECT *, NOT pg_is_in_recovery() AND pinned_to <> wirefence.identity() AS former FROM wirefence.resource_locks) AS l
     ON l.resource_id = t.resource`;

const releaseSQL = "SELECT wirefence.release($1, $2)::text AS held";

/** Types of problems, by SQLSTATE. */
const types: Record<string, string> = { "22023": "invalid-request", WF008: "no-such-resource", "3F000": "not-configured", "42883": "not-configured" };

/** Returns what makes sessions with a database, one for each lease. */
export function sessions(url: string): () => Source {
  try {
    new URL(url);
  } catch {
    throw new TypeError("the url of the database can't be read"); // the error's own text has the password
  }
  return () => new Session(url);
}

/** The requests of one lease, and a connection of its own between them. A request that finds the
 * connection in use opens another. */
class Session implements Source {
  readonly #url: string;
  #idle: Connection[] = [];
  #broken = new WeakSet<Connection>();
  #closed = false;
  #token = "0";

  constructor(url: string) {
    this.#url = url;
  }

  async call<T>(resource: string, operation: string, body: Record<string, any>, seconds: number, signal?: AbortSignal): Promise<T> {
    if (operation === "acquire") return (await this.#acquire(resource, body, seconds - body["wait_seconds"], signal)) as T;
    if (operation === "release") {
      const { held } = await this.#ask(releaseSQL, [resource, body["grant_id"]], seconds, signal);
      return { was_held: held === "true" } as T;
    }
    const ttl: number = body["ttl_seconds"];
    const { cause } = await this.#ask(renewSQL, [body["grant_id"], ttl, resource, this.#token], seconds, signal);
    if (cause) throw new ApiError("the database no longer has the lease", 0, { type: "urn:wirefence:problem:lease-lost", cause: cause as Cause });
    return term(ttl) as T;
  }

  /** Closes the connection. Later requests open their own. */
  close(): void {
    this.#closed = true;
    for (const connection of this.#idle.splice(0)) end(connection);
  }

  /** Asks until the lease is won, or the time to wait is over. */
  async #acquire(resource: string, body: Record<string, any>, patience: number, signal?: AbortSignal): Promise<object> {
    const began = performance.now();
    const since = (): number => (performance.now() - began) / 1000;
    const ttl: number = body["ttl_seconds"] ?? defaultTtl;
    const grant = `${body["holder"]}/${body["idempotency_key"]}`;
    // Others may know this name of the grant, as its id is a secret.
    const holder = `${body["holder"]}/${base32(createHash("sha256").update(grant).digest()).slice(0, 26)}`;
    for (;;) {
      const after = since();
      const bound = String(Math.max(1, Math.ceil(patience * 1000)));
      const { token, held_by, held_for } = await this.#ask(acquireSQL, [bound, resource, holder, ttl, grant], patience, signal);
      if (token) {
        this.#token = token;
        return { resource, grant_id: grant, token_text: token, fence: `${encodeResource(resource)}=${token}`, ...term(ttl, after) };
      }
      const left = body["wait_seconds"] - since();
      if (left <= 0) {
        const problem = { type: "urn:wirefence:problem:lease-held", ...(held_by && { held_by, held_for_seconds: Number(held_for) }) };
        throw new LeaseHeld(`"${resource}" is held by ${held_by ?? "another, which is being granted it"}`, 0, problem);
      }
      const pause = Math.min(left, 1, Math.max(0.05, Number(held_for))) * 1000;
      await sleep(pause, undefined, signal && { signal }).catch(() => signal?.throwIfAborted());
    }
  }

  /** Returns the row that a statement returns, within so many seconds. */
  async #ask(sql: string, values: readonly unknown[], seconds: number, signal?: AbortSignal): Promise<Record<string, string | null>> {
    const late = AbortSignal.timeout(Math.max(1, Math.ceil(seconds * 1000)));
    const stop = signal ? AbortSignal.any([signal, late]) : late;
    const answer = this.#query(sql, values, seconds, stop);
    answer.then(
      ([row]) => {
        if (!stop.aborted || !this.#closed || sql !== acquireSQL || !row["token"]) return;
        this.#query(releaseSQL, [values[1], values[4]], grace, new AbortController().signal).catch(() => undefined); // nobody knows of this grant
      },
      () => undefined,
    );
    try {
      return (await Promise.race([answer, aborted(stop)]))[0];
    } catch (error) {
      signal?.throwIfAborted();
      throw late.aborted ? new Unavailable(`no answer from the database: none within ${seconds.toFixed(3)} s`) : translated(error);
    }
  }

  async #query(sql: string, values: readonly unknown[], seconds: number, stop: AbortSignal): Promise<[Record<string, string | null>]> {
    for (;;) {
      const used = this.#idle.pop();
      const connection = used ?? (await this.#connect(seconds));
      const abandon = (): void => void setTimeout(() => end(connection), grace * 1000).unref();
      stop.addEventListener("abort", abandon, { once: true });
      try {
        stop.throwIfAborted();
        const rows = await connection.query(sql, values);
        this.#idle.push(connection);
        if (this.#closed) this.close();
        return [rows[0]!];
      } catch (error) {
        end(connection);
        // It may have broken while it was idle.
        if (!used || stop.aborted || !this.#broken.has(connection)) throw error;
      } finally {
        stop.removeEventListener("abort", abandon);
      }
    }
  }

  async #connect(seconds: number): Promise<Connection> {
    const milliseconds = Math.max(1, Math.ceil(seconds * 1000));
    const broken = (): void => void this.#broken.add(connection);
    const [pg, postgres] = await drivers();
    let connection: Connection;
    if (pg) {
      const session = new pg.Client({ connectionString: this.#url, fallback_application_name: name, connectionTimeoutMillis: milliseconds });
      connection = { query: async (text, values) => (await session.query(text, values)).rows, end: () => session.end() };
      session.on("error", broken); // without a listener it would end the process
      await session.connect();
    } else {
      const dialer = new Dialer();
      const sql = postgres(this.#url, {
        socket: (address: Address) => dialer.dial(address), max: 1, prepare: false, fetch_types: false, max_lifetime: null, connect_timeout: milliseconds / 1000,
        connection: { application_name: name }, onclose: broken, onnotice: () => undefined,
      });
      connection = { query: (text, values) => sql.unsafe(text, values), end: () => (dialer.end(), sql.end({ timeout: 0 })) };
    }
    return connection;
  }
}

/** What postgres.js tells of where to connect. */
interface Address {
  host: string[];
  port: number[];
  path?: string | false;
}

/** Connects for postgres.js, which by itself connects again without a pause where a server accepts and closes. */
class Dialer {
  #tries = 0;
  #dials = 0; // behind its connect_timeout it dials again
  #over = false;
  #socket?: Socket;

  async dial({ host, port, path }: Address): Promise<Socket> {
    const dial = ++this.#dials;
    for (;;) {
      const round = this.#tries - host.length;
      if (round >= 0) await sleep(Math.min(0.1 * 2 ** round, 2) * 1000);
      if (this.#over || dial !== this.#dials) throw new Error("the connection has been ended");
      const at = this.#tries++ % host.length;
      const socket = (this.#socket = path ? connect(path) : connect(port[at]!, host[at]!));
      try {
        await once(socket, "connect");
        return Object.assign(socket, { host: host[at] }); // by which it verifies a certificate
      } catch (error) {
        if (host.length === 1) throw error; // with more hosts it waits for the next socket
      }
    }
  }

  end(): void {
    this.#over = true;
    this.#socket?.destroy();
  }
}

const name = "wirefence lease";

/** Returns pg, or postgres.js where that is not installed. Neither is needed over HTTP, not even its types. */
async function drivers(): Promise<any[]> {
  const load = (driver: string): Promise<any> => import(driver).then((module) => module.default);
  const pg = await load("pg").catch(() => undefined);
  const postgres = pg ?? (await load("postgres").catch((cause) => {
    throw new WirefenceError("leases by SQL need the package pg or postgres: npm install pg", { cause });
  }));
  return [pg, postgres];
}

function term(ttl: number, after = 0): Term {
  return { ttl_seconds: ttl, expires_in_seconds: after + ttl, renew_after_seconds: after + ttl / 3 };
}

function end(connection: Connection): void {
  connection.end().catch(() => undefined);
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}

function base32(bytes: Uint8Array): string {
  const bits = [...bytes].map((byte) => byte.toString(2).padStart(8, "0")).join("");
  return bits.match(/.{5}/g)!.map((five) => "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[parseInt(five, 2)]).join("");
}

/** Returns a driver's error as the API's. */
function translated(error: unknown): unknown {
  const { code = "", severity, message, detail, hint } = error as Record<string, string | undefined>;
  if (error instanceof WirefenceError) return error;
  if (!severity || /^(08|25|40|53|55|57|58|XX)/.test(code)) return new Unavailable(`no answer from the database: ${message || code}`, 0, {}, { cause: error });
  const type = `urn:wirefence:problem:${types[code] ?? "refused-by-the-database"}`;
  return new ApiError([message, detail, hint].filter(Boolean).join(". "), 0, { type }, { cause: error });
}
