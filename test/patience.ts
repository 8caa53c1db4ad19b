import { expect, vi } from "vitest";

/**
 * Time in which a state is reached, unless something hangs. Less, such as vitest's own of one second, is an assertion about the machine.
 * The long run of faults may have a busy machine.
 */
const timeout = process.env.TOOLGATE_LONG === "1" ? 600_000 : 60_000;

const { waitFor, waitUntil } = vi;
const { poll } = expect;
const patient = <T extends { timeout?: number }>(options?: T) => ({
  ...options,
  timeout: Math.max(timeout, options?.timeout ?? 0),
});
const patientOrNumber = (options: Parameters<typeof waitFor>[1]) =>
  patient(typeof options === "number" ? { timeout: options } : options);
// Files share the module, and each runs this set-up.
if (waitFor.name !== "waitPatiently") {
  vi.waitFor = function waitPatiently(work, options) {
    return waitFor(work, patientOrNumber(options));
  };
  vi.waitUntil = (work, options) => waitUntil(work, patientOrNumber(options));
}
if (poll.name !== "pollPatiently") {
  expect.poll = function pollPatiently(work, options) {
    return poll(work, patient(options));
  };
}
