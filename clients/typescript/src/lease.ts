/// <reference lib="esnext.disposable" preserve="true" />
import type { Clock } from "./clock.js";
import { ApiError, LeaseLost, type Cause } from "./errors.js";
import { Fence } from "./fence.js";

// A timer stands still while the machine is suspended, so none is longer than this, in seconds.
const glance = 1;

/** The longest time to live that the API allows, in seconds. */
const maxKeep = 3600;

/** @internal */
export function checkKeepFor(keepFor: number): number {
  if (keepFor >= 0 && keepFor <= maxKeep) return keepFor;
  throw new RangeError(`keepFor is ${keepFor}, must be 0 to ${maxKeep} seconds`);
}

/** Answers the requests of leases: an API, or a database. @internal */
export interface Source {
  call<T>(resource: string, operation: string, body: object, seconds: number, signal?: AbortSignal): Promise<T>;
  /** Ends what is open between requests. */
  close(): void;
}

/** How long a lease lasts, counted from before its request was sent. */
export interface Term {
  ttl_seconds: number;
  expires_in_seconds: number;
  renew_after_seconds: number;
}

/** The answer to an acquire. */
export interface Grant extends Term {
  resource: string;
  token_text: string;
  fence: string;
  grant_id: string;
}

/** The settings by which a client keeps its leases, in seconds. */
export interface Keeping {
  api: Source;
  clock: Clock;
  margin: number | undefined;
  maxHold: number;
  timeout: number;
}

/**
 * One grant: the exclusive use of a resource until it ends.
 *
 * It is renewed in the background, and ends at its deadline whatever the server says. The
 * deadline counts from before the last confirmed request was sent, less the margin. Until it
 * ends, it keeps the process alive.
 */
export class Lease extends Fence implements AsyncDisposable {
  readonly resource: string;
  /** Tokens reach beyond Number.MAX_SAFE_INTEGER. */
  readonly token: bigint;
  /** Seconds that the lease store keeps the lease without a renewal. */
  readonly ttl: number;
  readonly margin: number;

  readonly #grantId: string;
  readonly #keeping: Keeping;
  readonly #ended = new AbortController();
  readonly #last: number;
  readonly #granted: number;
  #expires = 0; // in the lease store, or earlier
  #deadline = 0;
  #renewAt = 0;
  #asking = false; // a renewal waits for its answer
  #renewal = Promise.resolve(); // the last one
  #failure: unknown; // of the last renewal, while it waits too
  #timer: NodeJS.Timeout | undefined;

  /** @internal */
  constructor(keeping: Keeping, grant: Grant, sent: number) {
    super(grant.fence);
    this.resource = grant.resource;
    this.token = BigInt(grant.token_text);
    this.#grantId = grant.grant_id;
    this.ttl = grant.ttl_seconds;
    this.margin = keeping.margin ?? grant.ttl_seconds / 5;
    this.#keeping = keeping;
    this.#last = sent + keeping.maxHold;
    this.#granted = keeping.clock();
    this.#confirmed(grant, sent);
    this.#wake();
  }

  /** A secret, by which one renews and releases the lease. No inspection of the lease shows it. */
  get grantId(): string {
    return this.#grantId;
  }

  /** Aborted when the lease ends, with a LeaseLost as its reason. */
  get signal(): AbortSignal {
    return this.#ended.signal;
  }

  /**
   * Throws a LeaseLost if the lease has ended. It reads the clock, so it also tells a process
   * that was stopped a moment ago, whose timers are late.
   */
  override check(): void {
    if (this.#over()) throw this.signal.reason;
  }

  /** Seconds until the lease ends if it isn't renewed; 0 if it has ended. */
  remaining(): number {
    return this.#over() ? 0 : Math.max(0, this.#deadline - this.#keeping.clock());
  }

  /**
   * Ends the lease and frees the resource. Returns whether the lease was still held in the
   * lease store. A second call does nothing.
   */
  async release(): Promise<boolean> {
    if (["lost", "released"].includes(this.signal.reason?.reason)) return false;
    if (!this.#over()) this.#end("released");
    const left = this.#expires - this.#keeping.clock();
    if (left <= 0) return false; // it has expired in the lease store
    return (await this.#callLast<{ was_held: boolean }>("release", {})).was_held;
  }

  /**
   * Ends the lease when its work has succeeded, but leaves it taken until so many seconds after its
   * grant, 0 to 3600. Returns whether it was still held in the lease store. If that time has
   * passed, or the lease has ended, this is a release. A release behind it does nothing.
   */
  async keep(keepFor: number): Promise<boolean> {
    const until = this.#granted + checkKeepFor(keepFor);
    if (this.#keeping.clock() < until && !this.#over()) await this.#renewal; // it would shorten the time
    const left = until - this.#keeping.clock();
    if (left <= 0 || this.#over()) return this.release();
    this.#end("released");
    try {
      const ttl = Math.max(1, Math.ceil(left * 1000) / 1000);
      await this.#callLast("renew", { ttl_seconds: ttl });
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.type === "lease-lost") return false;
      throw error;
    }
  }

  /** Releases the lease. If that fails, it expires by itself. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(() => false);
  }

  #call<T>(operation: string, body: object, patience: number): Promise<T> {
    const { api, timeout } = this.#keeping;
    return api.call(this.resource, operation, { grant_id: this.grantId, ...body }, Math.min(timeout, patience));
  }

  /** Without an answer this ends within a second of the deadline: the lease expires by itself. */
  async #callLast<T>(operation: string, body: object): Promise<T> {
    try {
      return await this.#call<T>(operation, body, Math.max(this.#deadline - this.#keeping.clock(), 1));
    } finally {
      this.#keeping.api.close();
    }
  }

  #confirmed(term: Term, sent: number): void {
    this.#expires = sent + term.expires_in_seconds;
    this.#deadline = Math.min(this.#expires - this.margin, this.#last);
    this.#renewAt = sent + term.renew_after_seconds * (0.9 + Math.random() / 10);
  }

  #end(reason: Cause, detail = "", cause?: unknown): void {
    clearTimeout(this.#timer);
    if (reason !== "released") this.#keeping.api.close();
    this.#ended.abort(new LeaseLost(this.resource, this.token, reason, detail, { cause }));
  }

  /** Ends the lease if its deadline has passed, and returns whether it has ended. */
  #over(): boolean {
    const now = this.#keeping.clock();
    if (!this.signal.aborted && now >= this.#deadline) {
      if (now >= this.#last) this.#end("max_hold");
      else if (this.#failure) this.#end("unreachable", String(this.#failure), this.#failure);
      else this.#end("expired");
    }
    return this.signal.aborted;
  }

  /** Renews or ends the lease if that is due, and schedules its next call. */
  #wake(): void {
    if (this.#over()) return;
    const now = this.#keeping.clock();
    if (!this.#asking && now >= this.#renewAt) this.#renewal = this.#renew(now);
    const next = this.#asking ? this.#deadline : Math.min(this.#deadline, this.#renewAt);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#wake(), Math.ceil(Math.min(glance, Math.max(0, next - now)) * 1000));
  }

  /** Asks once, within half of the remaining time, so that another try fits in. A try follows
   * a failed one after a twentieth of the ttl, or a bit earlier. */
  async #renew(sent: number): Promise<void> {
    this.#asking = true;
    this.#failure ??= new Error("no answer to a renewal");
    let term: Term | undefined;
    let failure: unknown;
    try {
      term = await this.#call<Term>("renew", { ttl_seconds: this.ttl }, (this.#deadline - sent) / 2);
    } catch (error) {
      failure = error;
    }
    if (this.#over()) return; // an answer that comes too late changes nothing
    this.#asking = false;
    this.#failure = failure;
    if (failure instanceof ApiError && failure.type === "lease-lost") {
      return this.#end(failure.problem.cause ?? "lost", failure.message);
    }
    if (term) this.#confirmed(term, sent);
    else this.#renewAt = this.#keeping.clock() + (this.ttl / 20) * (0.5 + Math.random() / 2);
    this.#wake();
  }
}
