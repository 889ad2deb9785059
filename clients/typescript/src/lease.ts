/// <reference lib="esnext.disposable" preserve="true" />
import { Lost, wantTerm, type Api, type Grant, type Term } from "./api.js";
import type { Clock } from "./clock.js";
import { LeaseLost, type Cause } from "./errors.js";

// A timer stands still while the machine is suspended, so none is longer than this, in seconds.
const glance = 1;
const retryMin = 0.025;
const retryMax = 1;

/** What a lease needs besides its grant; times are in seconds. */
export interface Keeping {
  api: Api;
  clock: Clock;
  /** When the acquire's request was sent. */
  sent: number;
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
export class Lease implements AsyncDisposable {
  readonly resource: string;
  /** Tokens reach beyond Number.MAX_SAFE_INTEGER. */
  readonly token: bigint;
  /** Such as `orders=34`. */
  readonly fence: string;
  readonly holder: string;
  readonly grantId: string;
  /** Seconds that the lease store keeps the lease without a renewal. */
  readonly ttl: number;
  readonly margin: number;

  readonly #keeping: Keeping;
  readonly #ended = new AbortController();
  readonly #last: number;
  #deadline = 0;
  #renewAt = 0;
  #failure: unknown;
  #asking = false;
  #pause = retryMin;
  #timer: NodeJS.Timeout | undefined;

  /** @internal */
  constructor(grant: Grant, keeping: Keeping) {
    this.resource = grant.resource;
    this.token = BigInt(grant.token_text);
    this.fence = grant.fence;
    this.holder = grant.holder;
    this.grantId = grant.grant_id;
    this.ttl = grant.ttl_seconds;
    this.margin = keeping.margin ?? grant.ttl_seconds / 5;
    this.#keeping = keeping;
    this.#last = keeping.sent + keeping.maxHold;
    this.#confirmed(grant, keeping.sent);
    this.check();
    this.#wait();
  }

  /** Aborted when the lease ends, with a LeaseLost as its reason. */
  get signal(): AbortSignal {
    return this.#ended.signal;
  }

  /** The fence as an SQL comment. It stays what it is when the lease has ended: a statement
   * without it would not be refused. */
  comment(): string {
    return `/*wirefence.token='${this.fence}'*/`;
  }

  /** The statement that makes the open transaction carry the fence. */
  setLocal(): string {
    return `SET LOCAL wirefence.token = '${this.fence}'`;
  }

  /** The fence for the connection parameter `options`. */
  options(): string {
    return `-c wirefence.token=${this.fence}`;
  }

  /**
   * Throws a LeaseLost if the lease has ended. It reads the clock, so it also tells a process
   * that was stopped a moment ago, whose timers are late.
   */
  check(): void {
    const { clock } = this.#keeping;
    if (!this.signal.aborted && clock() >= this.#deadline) {
      if (clock() >= this.#last) this.#end("max_hold");
      else if (this.#failure) this.#end("unreachable", String(this.#failure), this.#failure);
      else if (this.#asking) this.#end("unreachable", "no answer to a renewal");
      else this.#end("expired");
    }
    this.signal.throwIfAborted();
  }

  /** Seconds until the lease ends if it isn't renewed; 0 if it has ended. */
  remaining(): number {
    return this.signal.aborted ? 0 : Math.max(0, this.#deadline - this.#keeping.clock());
  }

  /**
   * Ends the lease and frees the resource. Returns whether the lease was still held in the
   * lease store. A second call does nothing.
   */
  async release(): Promise<boolean> {
    const before = this.#reason();
    if (before === "lost" || before === "released") return false;
    if (!before) this.#end("released");
    const { api, clock, timeout } = this.#keeping;
    const left = this.#deadline + this.margin - clock();
    if (left <= 0) return false; // the lease store has let it go
    const body = { grant_id: this.grantId };
    const answer = await api.call<{ was_held: boolean }>(this.resource, "release", body, Math.min(timeout, Math.max(left, 1)));
    return answer.was_held;
  }

  /** Releases the lease, which expires by itself where that fails. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(() => false);
  }

  #reason(): Cause | undefined {
    return this.signal.aborted ? (this.signal.reason as LeaseLost).reason : undefined;
  }

  #end(reason: Cause, detail = "", cause?: unknown): void {
    clearTimeout(this.#timer);
    this.#ended.abort(new LeaseLost(this.resource, this.token, reason, detail, { cause }));
  }

  #confirmed(term: Term, sent: number): void {
    this.#deadline = Math.min(sent + term.expires_in_seconds - this.margin, this.#last);
    this.#renewAt = sent + term.renew_after_seconds * (0.9 + Math.random() / 10);
  }

  #wait(): void {
    const now = this.#keeping.clock();
    const next = this.#asking ? this.#deadline : Math.min(this.#deadline, this.#renewAt);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#wake(), Math.ceil(Math.min(glance, Math.max(0, next - now)) * 1000));
  }

  #wake(): void {
    if (this.#over()) return;
    if (!this.#asking && this.#keeping.clock() >= this.#renewAt) void this.#renew();
    this.#wait();
  }

  #over(): boolean {
    try {
      this.check();
      return false;
    } catch {
      return true;
    }
  }

  /** Asks once, within half of what is left, so that another try fits in. */
  async #renew(): Promise<void> {
    const { api, clock, timeout } = this.#keeping;
    const sent = clock();
    const patience = Math.min(timeout, (this.#deadline - sent) / 2);
    this.#asking = true;
    let term: Term | undefined;
    let failure: unknown;
    try {
      const body = { grant_id: this.grantId, ttl_seconds: this.ttl };
      const answer = await api.call<Term>(this.resource, "renew", body, patience);
      wantTerm(answer);
      term = answer;
    } catch (error) {
      failure = error;
    }
    if (this.#over()) return; // an answer that comes too late changes nothing
    this.#asking = false;
    this.#failure = failure;
    if (failure instanceof Lost) {
      this.#end(failure.why, failure.message);
      return;
    }
    if (term) {
      this.#confirmed(term, sent);
      this.#pause = retryMin;
    } else {
      this.#renewAt = clock() + this.#pause * (0.5 + Math.random() / 2);
      this.#pause = Math.min(2 * this.#pause, retryMax);
    }
    this.#wait();
  }
}
