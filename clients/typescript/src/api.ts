import { ApiError, LeaseHeld, Unavailable, type Cause } from "./errors.js";

const prefix = "urn:wirefence:problem:";

/** A bearer token, or a function that returns it, asked for each request. */
export type BearerToken = string | (() => string | Promise<string>);

/** What an acquire answers. */
export interface Grant extends Term {
  resource: string;
  token_text: string;
  fence: string;
  holder: string;
  grant_id: string;
}

/** How long a lease lasts, counted from before its request was sent. */
export interface Term {
  ttl_seconds: number;
  expires_in_seconds: number;
  renew_after_seconds: number;
}

/** Throws where an answer doesn't say how long a lease lasts, as when something else than the
 * API has answered: a deadline that is no number would never pass. */
export function wantTerm(term: Term): void {
  for (const field of ["ttl_seconds", "expires_in_seconds", "renew_after_seconds"] as const) {
    if (!Number.isFinite(term[field])) throw new Unavailable(`the answer is not of the API: it has no ${field}`, { status: 200 });
  }
}

/** A renewal's answer that the lease is lost. */
export class Lost extends ApiError {
  readonly why: Cause;

  constructor(detail: string, why: Cause) {
    super(detail, { status: 409, type: "lease-lost" });
    this.why = why;
  }
}

interface Problem {
  type?: string;
  detail?: string;
  held_by?: string;
  held_for_seconds?: number;
  cause?: Cause;
}

/** The HTTP API of one proxy. */
export class Api {
  readonly #base: URL;
  readonly #token: BearerToken | undefined;
  readonly #fetch: typeof fetch;

  constructor(url: string | URL, token: BearerToken | undefined, fetcher: typeof fetch) {
    this.#base = new URL(url);
    if (!/^https?:$/.test(this.#base.protocol)) throw new TypeError(`${url} is not an http or https URL`);
    this.#base.pathname = this.#base.pathname.replace(/\/*$/, "/");
    this.#token = token;
    this.#fetch = fetcher;
  }

  /** Sends one request, which may take so many seconds. */
  async call<T>(resource: string, operation: string, body: object, seconds: number, signal?: AbortSignal): Promise<T> {
    const url = new URL(`v1/resources/${encodeURIComponent(resource)}/${operation}`, this.#base);
    const headers: Record<string, string> = { "Content-Type": "application/json" };
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    if (token) headers["Authorization"] = `Bearer ${token}`;
    const abort = new AbortController();
    const forward = (): void => abort.abort(signal?.reason);
    const late = (): void => abort.abort(new Error(`none within ${seconds.toFixed(3)} s`));
    const timer = setTimeout(late, Math.max(1, Math.ceil(seconds * 1000)));
    signal?.addEventListener("abort", forward);
    if (signal?.aborted) forward();
    let response: Response;
    let text: string;
    try {
      response = await this.#fetch(url, {
        method: "POST",
        headers,
        body: JSON.stringify(body),
        redirect: "error",
        signal: abort.signal,
      });
      text = await response.text();
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      throw new Unavailable(`no answer from ${this.#base.host}: ${reasonOf(error)}`, {}, { cause: error });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", forward);
    }
    return read(response, text) as T;
  }
}

/** fetch hides why it failed in the cause of its error. */
function reasonOf(error: unknown): string {
  const inner = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return inner instanceof Error ? inner.message || inner.name : String(inner);
}

function read(response: Response, text: string): unknown {
  let answer: unknown;
  try {
    answer = JSON.parse(text);
    if (typeof answer !== "object" || answer === null) throw new SyntaxError("it is not an object");
  } catch (error) {
    const status = response.status;
    throw new Unavailable(`the answer, ${status}, is not of the API: ${reasonOf(error)}`, { status }, { cause: error });
  }
  if (response.status === 200) return answer;
  throw problemOf(response.status, answer as Problem, Number(response.headers.get("Retry-After") ?? 0));
}

function problemOf(status: number, problem: Problem, retryAfter: number): ApiError {
  const type = (problem.type ?? "").replace(prefix, "");
  const detail = problem.detail ?? `status ${status}`;
  if (type === "lease-held") return new LeaseHeld(detail, problem.held_by ?? "", problem.held_for_seconds);
  if (type === "lease-lost") return new Lost(detail, problem.cause ?? "lost");
  if (status === 429 || (status >= 500 && type !== "not-configured")) {
    return new Unavailable(detail, { status, type, retryAfter: retryAfter || 0 });
  }
  return new ApiError(detail, { status, type });
}
