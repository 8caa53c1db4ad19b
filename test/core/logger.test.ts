import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { createLogger } from "../../src/core/logger.ts";

test("each line is in the file when the call returns, as JSON that only its owner can read", () => {
  const { log, file, lines } = openLog();
  log.warn("call lost", { sessionId: "ses_1", callId: "c1" });
  expect(lines()).toMatchObject([{ level: "warn", message: "call lost", sessionId: "ses_1", callId: "c1" }]);
  expect((statSync(file).mode & 0o777).toString(8)).toBe("600");
});

test("what is below the level is not written", () => {
  const { log, lines } = openLog();
  log.info("too much");
  expect(lines()).toEqual([]);
});

test("an error is logged with its causes and without its other fields", () => {
  const { log, lines } = openLog();
  const error = Object.assign(new Error("cannot", { cause: new Error("because") }), {
    headers: { authorization: "s3cret" },
  });
  log.error("failed", { error });
  expect(lines()).toMatchObject([{ error: { name: "Error", message: "cannot", cause: { message: "because" } } }]);
  expect(JSON.stringify(lines())).not.toContain("s3cret");
});

test("a secret that gets past the types is not written", () => {
  const { log, lines } = openLog();
  const fields = { token: "s3cret", request: { authorization: "s3cret" } };
  log.error("failed", { reason: "x", ...fields });
  expect(JSON.stringify(lines())).not.toContain("s3cret");
});

function openLog() {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-log-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const file = join(directory, "toolgate.log");
  writeFileSync(file, "", { mode: 0o644 });
  const log = createLogger({ level: "warn", file });
  const lines = (): unknown[] =>
    readFileSync(file, "utf8")
      .split("\n")
      .filter((line) => line !== "")
      .map((line) => JSON.parse(line));
  return { log, file, lines };
}
