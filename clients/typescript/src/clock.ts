import { uptime } from "node:os";

/** Reads a clock, in seconds. */
export type Clock = () => number;

/**
 * Returns a clock that never jumps back, and goes on while the machine is suspended. Node's own
 * stands still then under Linux, so what the system's uptime has gained on it is added. Gains of
 * up to a second don't count: some systems tell their uptime in whole seconds.
 */
export function steadyClock(): Clock {
  const gain = (): number => uptime() - performance.now() / 1000;
  const start = gain();
  let suspended = 0;
  return () => {
    const gained = gain() - start;
    if (gained > suspended + 1) suspended = gained;
    return performance.now() / 1000 + suspended;
  };
}
