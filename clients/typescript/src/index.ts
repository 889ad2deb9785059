export { Client, type AcquireOptions, type BlockOptions, type ClientOptions } from "./client.js";
export { Claims, Fence, type ClaimValue, type Key } from "./fence.js";
export { Lease } from "./lease.js";
export * from "./errors.js";
