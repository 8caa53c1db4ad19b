import fc from "fast-check";

/**
 * The seed of all random tests: `TOOLGATE_SEED`, otherwise a fixed number, so that a change is refused only for what it does.
 * Other seeds are tried when someone looks for faults; what one of them finds becomes a test case.
 */
export const seed = Number(process.env.TOOLGATE_SEED ?? 20_261_123);

fc.configureGlobal({ seed });
