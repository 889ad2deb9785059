export { Client, type AcquireOptions, type ClientOptions } from "./client.js";
export { Lease } from "./lease.js";
export * from "./errors.js";
