import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { main } from "../main.ts";
import { startProgramAtTerminal } from "./toolgate.ts";

const root = resolve(import.meta.dirname, "../..");
/** The page shows the demo of a checkout; that of the package names other commands. */
const checkout = join(root, "bin/toolgate.js");

/** Replaces what differs from run to run. */
function constant(printed: string): string {
  return printed
    .replaceAll(/127\.0\.0\.1:\d+/g, "HOST")
    .replaceAll(/toolgate-demo-\w+/g, "toolgate-demo-x")
    .replaceAll(/^sandbox: not active.*\n/gm, "")
    .replaceAll(/^ +(total \d+|-rw.*)$/gm, "     LISTED")
    .replaceAll(/ +$/gm, "")
    .trim();
}

test("without a terminal the demo answers itself and prints what docs/quickstart.md shows", async () => {
  const { code, stdout } = await main(["demo"], {}, checkout);
  const page = readFileSync(join(root, "docs/quickstart.md"), "utf8");
  const [, shown = ""] = /^```text\n(Toolgate runs at .*?)^```/ms.exec(page) ?? [];
  expect(code).toBe(0);
  expect(constant(stdout)).toBe(constant(shown));
});

test("without a sandbox, where each command asks, it answers for the command that policy allows", async () => {
  const { code, stdout } = await main(["demo"], { PATH: "/nowhere" }, checkout);
  expect(code).toBe(0);
  expect(stdout).toContain("bubblewrap is not installed");
  expect(stdout).toContain("Without a sandbox each command asks");
  expect(stdout.match(/the person answers: (once|reject)/g)).toEqual(
    ["once", "once", "reject"].map((answer) => `the person answers: ${answer}`),
  );
});

test("at a terminal it leaves a request to a person, and Enter lets it answer itself", async () => {
  const { child, sees, finished } = startProgramAtTerminal([process.execPath, checkout, "demo"]);
  onTestFinished(() => void child.kill("SIGKILL"));
  await sees("approve or reject the call in the console", "/#code=", "press Enter to let it answer itself");
  child.stdin?.write("\n");
  const { code, stdout } = await finished;
  expect(code).toBe(0);
  expect(stdout).toContain("the person answers: once");
});

test("at a terminal with --auto it does not wait", async () => {
  const program = [process.execPath, checkout, "demo", "--auto"];
  const { code, stdout } = await startProgramAtTerminal(program).finished;
  expect(code).toBe(0);
  expect(stdout).not.toContain("press Enter");
});
