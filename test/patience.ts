import { vi } from "vitest";

/**
 * Time in which a state is reached, unless something hangs. Less, such as vitest's own of one second, is an assertion about the machine.
 * The long run of faults may have a busy machine.
 */
const timeout = process.env.TOOLGATE_LONG === "1" ? 600_000 : 60_000;

const { waitFor, waitUntil } = vi;
const patient = (options: Parameters<typeof waitFor>[1]) =>
  typeof options === "number"
    ? Math.max(timeout, options)
    : { ...options, timeout: Math.max(timeout, options?.timeout ?? 0) };
// Files share the module, and each runs this set-up.
if (waitFor.name !== "waitPatiently") {
  vi.waitFor = function waitPatiently(work, options) {
    return waitFor(work, patient(options));
  };
  vi.waitUntil = (work, options) => waitUntil(work, patient(options));
}
