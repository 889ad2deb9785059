import { uptime } from "node:os";

/** Reads a clock, in seconds. */
export type Clock = () => number;

/**
 * Returns a clock that never jumps. Node's own stands still while a machine under Linux is
 * suspended, and the system's uptime doesn't, so it goes by the one that saw more time pass.
 */
export function steadyClock(): Clock {
  const mono = performance.now();
  const boot = uptime();
  return () => Math.max((performance.now() - mono) / 1000, uptime() - boot);
}
