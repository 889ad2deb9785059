/// <reference lib="es2022.error" preserve="true" />
/** Base of all errors of this package. */
export class WirefenceError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The API answered with a problem. `type` is its name in docs/api.md. */
export class ApiError extends WirefenceError {
  readonly status: number;
  readonly type: string;

  constructor(detail: string, about: { status?: number; type?: string } = {}, options?: ErrorOptions) {
    super(detail, options);
    this.status = about.status ?? 0;
    this.type = about.type ?? "";
  }
}

/**
 * The proxy, its lease store or its database didn't serve the request. It isn't known whether
 * the request was carried out. `retryAfter` is in seconds.
 */
export class Unavailable extends ApiError {
  readonly retryAfter: number;

  constructor(
    detail: string,
    about: { status?: number; type?: string; retryAfter?: number } = {},
    options?: ErrorOptions,
  ) {
    super(detail, about, options);
    this.retryAfter = about.retryAfter ?? 0;
  }
}

/** Another holder has the lease. `heldFor` is in seconds, undefined if unknown. */
export class LeaseHeld extends ApiError {
  readonly heldBy: string;
  readonly heldFor: number | undefined;

  constructor(detail: string, heldBy: string, heldFor: number | undefined) {
    super(detail, { status: 409, type: "lease-held" });
    this.heldBy = heldBy;
    this.heldFor = heldFor;
  }
}

/**
 * Why a lease has ended:
 *
 * - `expired`: it was not renewed in time, since the process or its machine stood still
 * - `unreachable`: it was not renewed in time, since renewals failed; `cause` of the error says how
 * - `lost`: another has it, or the lease store has it no more
 * - `revoked`: an operator has locked the holder out
 * - `failover`: the database was promoted or restored
 * - `max_hold`: it reached the longest time that it may be kept
 * - `released`: it was given back
 */
export type Cause = "expired" | "unreachable" | "lost" | "revoked" | "failover" | "max_hold" | "released";

/** The lease has ended, and never comes back. */
export class LeaseLost extends WirefenceError {
  readonly resource: string;
  readonly token: bigint;
  readonly reason: Cause;

  constructor(resource: string, token: bigint, reason: Cause, detail = "", options?: ErrorOptions) {
    const text = `lease of "${resource}" with token ${token} has ended: ${reason}`;
    super(detail ? `${text}: ${detail}` : text, options);
    this.resource = resource;
    this.token = token;
    this.reason = reason;
  }
}

/**
 * PostgreSQL or the proxy refused a statement for its fence. `cause` is the driver's error.
 * Don't retry a refused statement with the same token.
 */
export class Refused extends WirefenceError {
  static readonly sqlstate: string = "";
  static readonly condition: string = "";
  readonly detail: string;
  readonly hint: string;

  constructor(message: string, detail = "", hint = "", options?: ErrorOptions) {
    super(message, options);
    this.detail = detail;
    this.hint = hint;
  }

  get sqlstate(): string {
    return (this.constructor as typeof Refused).sqlstate;
  }

  get condition(): string {
    return (this.constructor as typeof Refused).condition;
  }
}

/** A later holder has superseded the token: stop the work. */
export class StaleToken extends Refused {
  static override readonly sqlstate = "WF001";
  static override readonly condition = "stale_fencing_token";
}

/** A guard or the proxy's policy wants a fence, and none came. */
export class TokenRequired extends Refused {
  static override readonly sqlstate = "WF002";
  static override readonly condition = "fencing_token_required";
}

/** The token was never granted, or comes from another lock service. */
export class UnknownToken extends Refused {
  static override readonly sqlstate = "WF003";
  static override readonly condition = "unknown_fencing_token";
}

/** The text is not a fence. */
export class MalformedToken extends Refused {
  static override readonly sqlstate = "WF004";
  static override readonly condition = "malformed_fencing_token";
}

/** A token of single use came again. */
export class TokenReused extends Refused {
  static override readonly sqlstate = "WF005";
  static override readonly condition = "fencing_token_reused";
}

/** The statement can't run under its fence. */
export class CannotBeFenced extends Refused {
  static override readonly sqlstate = "WF006";
  static override readonly condition = "statement_cannot_be_fenced";
}

/** The sidecar doesn't have its lease. */
export class LeaseNotHeld extends Refused {
  static override readonly sqlstate = "WF007";
  static override readonly condition = "lease_not_held";
}

/** Resources must be declared, and this one isn't. */
export class ResourceUnknown extends Refused {
  static override readonly sqlstate = "WF008";
  static override readonly condition = "unknown_fenced_resource";
}

const kinds = new Map(
  [
    StaleToken,
    TokenRequired,
    UnknownToken,
    MalformedToken,
    TokenReused,
    CannotBeFenced,
    LeaseNotHeld,
    ResourceUnknown,
  ].map((kind) => [kind.sqlstate as string, kind]),
);

/**
 * Returns what a driver's error says as a Refused, or undefined if it is no refusal. It knows
 * pg and postgres.js, and errors that have one of theirs as `cause`.
 */
export function refusal(error: unknown): Refused | undefined {
  for (let depth = 0; error instanceof Error && depth < 10; depth++) {
    if (error instanceof Refused) return error;
    const told = error as Error & { code?: unknown; detail?: string; hint?: string };
    const kind = typeof told.code === "string" ? kinds.get(told.code) : undefined;
    if (kind) return new kind(told.message, told.detail ?? "", told.hint ?? "", { cause: error });
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
