/// <reference lib="es2022.error" preserve="true" />
/** Base of all errors of this package. */
export class WirefenceError extends Error {
  override readonly name = this.constructor.name;
}

/** The API's report of a failure. */
export interface Problem {
  type?: string;
  detail?: string;
  held_by?: string;
  held_for_seconds?: number;
  cause?: Cause;
}

/** The API answered with a problem. `type` is its name in docs/reference/api.md. */
export class ApiError extends WirefenceError {
  readonly type: string;

  constructor(message: string, readonly status = 0, readonly problem: Problem = {}, options?: ErrorOptions) {
    super(message, options);
    this.type = (problem.type ?? "").replace("urn:wirefence:problem:", "");
  }
}

/**
 * The proxy, its lease store or its database didn't serve the request. It isn't known whether
 * the request was carried out.
 */
export class Unavailable extends ApiError {
  /** Seconds. */
  retryAfter = 0;
}

/** Another holder has the lease. */
export class LeaseHeld extends ApiError {
  readonly heldBy = this.problem.held_by ?? "";
  /** Seconds, undefined if unknown. */
  readonly heldFor = this.problem.held_for_seconds;
}

/** Why a lease has ended. docs/reference/clients.md describes each. */
export type Cause = "expired" | "unreachable" | "lost" | "revoked" | "failover" | "max_hold" | "released";

/** The lease has ended, and never comes back. */
export class LeaseLost extends WirefenceError {
  constructor(
    readonly resource: string,
    readonly token: bigint,
    readonly reason: Cause,
    detail = "",
    options?: ErrorOptions,
  ) {
    super(`lease of "${resource}" with token ${token} has ended: ${reason}${detail && `: ${detail}`}`, options);
  }
}

/**
 * PostgreSQL or the proxy refused a statement for its fence. `cause` is the driver's error.
 * Don't retry a refused statement with the same token.
 */
export class Refused extends WirefenceError {
  constructor(
    message: string,
    readonly sqlstate: string,
    readonly condition: string,
    readonly detail = "",
    readonly hint = "",
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** A later holder has superseded the token: stop the work. */
export class StaleToken extends Refused {}
/** A guard or the proxy's policy requires a fence, and the statement has none. */
export class TokenRequired extends Refused {}
/** The token was never granted, or comes from another lock service. */
export class UnknownToken extends Refused {}
/** The text is not a fence. */
export class MalformedToken extends Refused {}
/** A token for one transaction was presented again. */
export class TokenReused extends Refused {}
/** The statement can't run under its fence. */
export class CannotBeFenced extends Refused {}
/** The sidecar doesn't have its lease. */
export class LeaseNotHeld extends Refused {}
/** Resources must be declared, and this one isn't. */
export class ResourceUnknown extends Refused {}

const refusalKinds = new Map([
  ["WF001", { Kind: StaleToken, condition: "stale_fencing_token" }],
  ["WF002", { Kind: TokenRequired, condition: "fencing_token_required" }],
  ["WF003", { Kind: UnknownToken, condition: "unknown_fencing_token" }],
  ["WF004", { Kind: MalformedToken, condition: "malformed_fencing_token" }],
  ["WF005", { Kind: TokenReused, condition: "fencing_token_reused" }],
  ["WF006", { Kind: CannotBeFenced, condition: "statement_cannot_be_fenced" }],
  ["WF007", { Kind: LeaseNotHeld, condition: "lease_not_held" }],
  ["WF008", { Kind: ResourceUnknown, condition: "unknown_fenced_resource" }],
]);

/**
 * Returns a driver's error as a Refused, or undefined if it is not a refusal. It knows
 * pg and postgres.js, and errors that have one of theirs as `cause`.
 */
export function refusal(error: unknown): Refused | undefined {
  for (let depth = 0; error instanceof Error && depth < 10; depth++) {
    if (error instanceof Refused) return error;
    const { code = "", message, detail, hint } = error as Error & { code?: string; detail?: string; hint?: string };
    const known = refusalKinds.get(code);
    if (known) return new known.Kind(message, code, known.condition, detail, hint, { cause: error });
    error = error.cause;
  }
  return undefined;
}

/** Runs work, and throws a Refused in place of a driver's error that is a refusal. */
export async function refusals<T>(work: () => PromiseLike<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw refusal(error) ?? error;
  }
}
