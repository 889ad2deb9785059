import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

import { Api, type BearerToken } from "./api.js";
import { steadyClock, type Clock } from "./clock.js";
import { sessions } from "./database.js";
import { LeaseHeld, Unavailable } from "./errors.js";
import { checkKeepFor, Lease, type Grant, type Keeping, type Source } from "./lease.js";

const maxWait = 60; // seconds that one request may wait

/** Options of a Client. Times are in seconds. */
export interface ClientOptions {
  /** Bearer token, or a function that returns it, asked for each request. */
  token?: BearerToken;
  /** Readable name of this process; default host:pid. */
  holder?: string;
  /** How long the lease store keeps a lease that isn't renewed, 1 to 3600; default: the proxy's. */
  ttl?: number;
  /** How long before that the work must end; default a fifth of the ttl. */
  margin?: number;
  /** How long a lease may be kept, renewals included; default a day, Infinity: no limit. */
  maxHold?: number;
  /** How long a request may take, besides the time that the server waits; default 30. */
  timeout?: number;
  /** Sends requests; default: the global fetch. */
  fetch?: typeof fetch;
  /** Default: a clock that never jumps. */
  clock?: Clock;
}

/** Options of one acquire. */
export interface AcquireOptions {
  /** Seconds to wait for another holder, and for a server that doesn't serve; default 0: try once. */
  wait?: number;
  /** A fresh random text of 16 to 39 letters, digits, - and _; default one that is made up. */
  idempotencyKey?: string;
  /** Ends the waiting. It doesn't end a lease that was won. */
  signal?: AbortSignal;
}

/** Options of a block of work with a lease. */
export interface BlockOptions extends AcquireOptions {
  /** If the work succeeds, the lease stays taken until so many seconds after its grant, 0 to 3600; default 0. */
  keepFor?: number;
}

/** Takes leases from the HTTP API of a Wirefence proxy, or, with a url postgresql://…, from PostgreSQL by SQL. */
export class Client {
  readonly #request: { holder: string; ttl_seconds: number | undefined };
  readonly #keeping: Omit<Keeping, "api">;
  readonly #open: () => Source;

  constructor(url: string | URL, options: ClientOptions = {}) {
    const { token, holder, ttl, margin, maxHold = 86400, timeout = 30, clock = steadyClock() } = options;
    if (margin !== undefined && !(margin > 0 && margin <= (ttl ?? 3600) / 2)) {
      throw new RangeError(`margin is ${margin}, must be more than 0 seconds and at most half of the ttl`);
    }
    this.#request = { holder: holder ?? `${hostname()}:${process.pid}`, ttl_seconds: ttl };
    this.#keeping = { clock, margin, maxHold, timeout };
    if (/^postgres(ql)?:\/\//.test(String(url))) {
      if (token !== undefined || options.fetch) throw new TypeError("token and fetch are for the API: the url of a database has all that its connections need");
      this.#open = sessions(String(url));
    } else {
      const api = new Api(url, token, options.fetch ?? fetch);
      this.#open = () => api;
    }
  }

  /** Wins the lease of a resource, or throws. Release it, or use it by `await using`. */
  async acquire(resource: string, options: AcquireOptions = {}): Promise<Lease> {
    if (/^\.{0,2}$/.test(resource)) throw new RangeError(`${JSON.stringify(resource)} can't be a resource in a URL`);
    const keeping = { ...this.#keeping, api: this.#open() };
    const { grant, sent } = await this.#win(keeping, resource, options).catch((error: unknown) => {
      keeping.api.close();
      throw error;
    });
    const lease = new Lease(keeping, grant, sent);
    try {
      lease.check();
    } catch (late) {
      await lease[Symbol.asyncDispose]();
      throw late;
    }
    return lease;
  }

  /** Runs work with the lease of a resource, and gives the lease back, or keeps it if the work
   * has succeeded. If the lease was lost while the work ran, it throws the LeaseLost when the work
   * has ended. */
  async withLease<T>(resource: string, options: BlockOptions, work: (lease: Lease) => Promise<T>): Promise<T> {
    const keepFor = checkKeepFor(options.keepFor ?? 0);
    await using lease = await this.acquire(resource, options);
    const result = await work(lease);
    if (lease.signal.reason?.reason !== "released") lease.check();
    await lease.keep(keepFor).catch(() => false); // it expires by itself
    return result;
  }

  /** Asks until the lease is won or the wait is over. Returns the answer, and when the request
   * that it answers was sent. */
  async #win({ api, clock, timeout }: Keeping, resource: string, options: AcquireOptions): Promise<{ grant: Grant; sent: number }> {
    const { wait = 0, idempotencyKey = randomUUID(), signal } = options;
    const until = clock() + wait;
    for (let pause = 0.1; ; pause = Math.min(2 * pause, 2)) {
      signal?.throwIfAborted();
      const sent = clock();
      const asked = Math.floor(Math.min(Math.max(0, until - sent), maxWait) * 1000) / 1000;
      const request = { ...this.#request, idempotency_key: idempotencyKey, wait_seconds: asked };
      try {
        return { grant: await api.call(resource, "acquire", request, asked + timeout, signal), sent };
      } catch (error) {
        if (error instanceof LeaseHeld && asked > 0) continue;
        if (!(error instanceof Unavailable)) throw error;
        const delay = Math.max(pause, error.retryAfter);
        if (clock() + delay >= until) throw error;
        await sleep(delay * 1000, undefined, signal && { signal });
      }
    }
  }
}
