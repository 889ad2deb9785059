export { Client, type AcquireOptions, type ClientOptions } from "./client.js";
export { Lease } from "./lease.js";
export {
  ApiError,
  CannotBeFenced,
  LeaseHeld,
  LeaseLost,
  LeaseNotHeld,
  MalformedToken,
  Refused,
  ResourceUnknown,
  StaleToken,
  TokenRequired,
  TokenReused,
  Unavailable,
  UnknownToken,
  WirefenceError,
  refusal,
  refusals,
  type Cause,
} from "./errors.js";
