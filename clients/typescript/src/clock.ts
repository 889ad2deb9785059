import { uptime } from "node:os";

/** Reads a clock, in seconds. */
export type Clock = () => number;

/**
 * Returns a clock that never jumps back, and runs on while the machine is suspended. Under Linux,
 * Node's own clock stops then, so the clock adds the time that the system's uptime has gained on
 * it. It ignores gains of up to a second, since some systems report their uptime in whole seconds.
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
