import { spawn } from "node:child_process";
import { parseArgs } from "node:util";

// npm run test:faults [-- --long] [FILE …]: the faults in small numbers, or with --long in those of docs/internals/tested.md.
const { values, positionals } = parseArgs({
  options: { long: { type: "boolean", default: false } },
  allowPositionals: true,
});
const tests = spawn("npx", ["vitest", "run", "--config", "test/faults/vitest.config.ts", ...positionals], {
  env: { ...process.env, ...(values.long && { TOOLGATE_LONG: "1" }) },
  stdio: "inherit",
});
tests.on("exit", (code) => {
  process.exitCode = code ?? 1;
});
