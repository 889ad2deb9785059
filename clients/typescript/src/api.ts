import { ApiError, LeaseHeld, Unavailable, type Problem } from "./errors.js";
import type { Source } from "./lease.js";

/** A bearer token, or a function that returns it, asked for each request. */
export type BearerToken = string | (() => string | Promise<string>);

/** The HTTP API of one proxy. */
export class Api implements Source {
  readonly #base: URL;

  constructor(
    url: string | URL,
    readonly token: BearerToken | undefined,
    readonly fetcher: typeof fetch,
  ) {
    this.#base = new URL(url);
    const { protocol, username, password } = this.#base;
    if (!/^https?:$/.test(protocol) || username || password) throw new TypeError("the url must be of an API, by http or https, with no user, or begin with postgresql://");
    this.#base.pathname = this.#base.pathname.replace(/\/*$/, "/");
  }

  /** Does nothing: no connection outlasts its request. */
  close(): void {}

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
    return read(operation, response, text) as T;
  }
}

type Test = (value: unknown) => boolean;

const isText: Test = (value) => typeof value === "string";
const matches = (pattern: RegExp): Test => (value) => typeof value === "string" && pattern.test(value);

/** What answers must have, or something else than the API has answered: a deadline that is no
 * number would never pass, and a fence is put into SQL. */
const term = { ttl_seconds: Number.isFinite, expires_in_seconds: Number.isFinite, renew_after_seconds: Number.isFinite };
const grant = { ...term, resource: isText, grant_id: isText, token_text: matches(/^[1-9][0-9]*$/), fence: matches(/^[\w.:/%-]+=[1-9][0-9]*(@[a-z][a-z0-9_.-]*)?$/) };
const fields: Record<string, Record<string, Test>> = { acquire: grant, renew: term, release: { was_held: (value) => typeof value === "boolean" } };

function read(operation: string, { status, headers }: Response, text: string): object {
  let answer: Problem & Record<string, unknown>;
  try {
    answer = JSON.parse(text);
    if (typeof answer !== "object" || answer === null) throw new SyntaxError("it is not an object");
    if (status === 200) {
      for (const [field, test] of Object.entries(fields[operation]!)) {
        if (!test(answer[field])) throw new SyntaxError(`${field} is ${answer[field]}`);
      }
      return answer;
    }
  } catch (cause) {
    throw new Unavailable(`the answer, ${status}, is not of the API: ${(cause as Error).message}`, status, {}, { cause });
  }
  const error = new ApiError(answer.detail ?? `status ${status}`, status, answer);
  if (error.type === "lease-held") throw new LeaseHeld(error.message, status, answer);
  if (status !== 429 && (status < 500 || error.type === "not-configured")) throw error;
  const unavailable = new Unavailable(error.message, status, answer);
  unavailable.retryAfter = Number(headers.get("Retry-After")) || 0;
  throw unavailable;
}
