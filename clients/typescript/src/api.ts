import { ApiError, LeaseHeld, Unavailable, type Problem } from "./errors.js";

/** A bearer token, or a function that returns it, asked for each request. */
export type BearerToken = string | (() => string | Promise<string>);

/** The HTTP API of one proxy. */
export class Api {
  readonly #base: URL;

  constructor(
    url: string | URL,
    readonly token: BearerToken | undefined,
    readonly fetcher: typeof fetch,
  ) {
    this.#base = new URL(url);
    if (!/^https?:$/.test(this.#base.protocol)) throw new TypeError(`${url} is not an http or https URL`);
    this.#base.pathname = this.#base.pathname.replace(/\/*$/, "/");
  }

  /** Sends one request, which may take so many seconds. */
  async call<T>(resource: string, operation: string, body: object, seconds: number, signal?: AbortSignal): Promise<T> {
    const url = new URL(`v1/resources/${encodeURIComponent(resource)}/${operation}`, this.#base);
    const token = typeof this.token === "function" ? await this.token() : this.token;
    const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
    const late = AbortSignal.timeout(Math.max(1, Math.ceil(seconds * 1000)));
    let response: Response;
    let text: string;
    try {
      response = await this.fetcher(url, {
        method: "POST",
        headers,
        body: JSON.stringify(body),
        redirect: "error",
        signal: signal ? AbortSignal.any([signal, late]) : late,
      });
      text = await response.text();
    } catch (error) {
      signal?.throwIfAborted();
      // fetch hides why it failed in the cause of its error.
      const { message } = error instanceof Error && error.cause instanceof Error ? error.cause : (error as Error);
      const why = late.aborted ? `none within ${seconds.toFixed(3)} s` : message;
      throw new Unavailable(`no answer from ${this.#base.host}: ${why}`, 0, {}, { cause: error });
    }
    const answer = read(response, text);
    if (operation !== "release") wantTerm(answer);
    return answer as T;
  }
}

/** Throws where an answer doesn't say how long a lease lasts, as when something else than the
 * API has answered: a deadline that is no number would never pass. */
function wantTerm(answer: object): void {
  for (const field of ["ttl_seconds", "expires_in_seconds", "renew_after_seconds"]) {
    if (!Number.isFinite((answer as Record<string, unknown>)[field])) throw new Unavailable(`the answer is not of the API: it has no ${field}`, 200);
  }
}

function read({ status, headers }: Response, text: string): object {
  let answer: Problem;
  try {
    answer = JSON.parse(text);
    if (typeof answer !== "object" || answer === null) throw new SyntaxError("it is not an object");
  } catch (cause) {
    throw new Unavailable(`the answer, ${status}, is not of the API`, status, {}, { cause });
  }
  if (status === 200) return answer;
  const error = new ApiError(answer.detail ?? `status ${status}`, status, answer);
  if (error.type === "lease-held") throw new LeaseHeld(error.message, status, answer);
  if (status !== 429 && (status < 500 || error.type === "not-configured")) throw error;
  const unavailable = new Unavailable(error.message, status, answer);
  unavailable.retryAfter = Number(headers.get("Retry-After")) || 0;
  throw unavailable;
}
