import { existsSync, mkdtempSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { createLogFile, createLogTarget } from "../../src/core/log-file.ts";
import { createLogger } from "../../src/core/logger.ts";
import { mountSmallDisk } from "../tmpfs.ts";

test("each line is in the file as JSON that only its owner can read", async () => {
  const { log, file, lines } = openLog();
  log.warn("call lost", { sessionId: "ses_1", callId: "c1" });
  expect(await lines()).toMatchObject([{ level: "warn", message: "call lost", sessionId: "ses_1", callId: "c1" }]);
  expect((statSync(file).mode & 0o777).toString(8)).toBe("600");
});

test("what is below the level is not written", async () => {
  const { log, lines } = openLog();
  log.info("too much");
  expect(await lines()).toEqual([]);
});

test("an error is logged with its causes and without its other fields", async () => {
  const { log, lines } = openLog();
  const error = Object.assign(new Error("cannot", { cause: new Error("because") }), {
    headers: { authorization: "s3cret" },
  });
  log.error("failed", { error });
  expect(await lines()).toMatchObject([{ error: { name: "Error", message: "cannot", cause: { message: "because" } } }]);
  expect(JSON.stringify(await lines())).not.toContain("s3cret");
});

test("a secret that gets past the types is not written", async () => {
  const { log, lines } = openLog();
  const fields = { token: "s3cret", request: { authorization: "s3cret" } };
  log.error("failed", { reason: "x", ...fields });
  expect(JSON.stringify(await lines())).not.toContain("s3cret");
});

test("lines that are queued at the end of the process are written at once", async () => {
  const { log, file, lines } = openLog();
  log.warn("one");
  await lines();
  log.warn("two");
  log.flushNow();
  expect(readFileSync(file, "utf8")).toContain('"two"');
});

test("after a reopen, lines go to a new file and not to the renamed one", async () => {
  const { log, file, lines } = openLog();
  log.warn("one");
  await lines();
  renameSync(file, `${file}.moved`);
  log.warn("two");
  await log.flush();
  // Control: without the reopen the renamed file is still the one that is written.
  expect(existsSync(file)).toBe(false);
  log.reopen();
  log.warn("three");
  expect(await lines()).toMatchObject([{ message: "three" }]);
  expect(readFileSync(`${file}.moved`, "utf8")).toContain('"two"');
});

test("a file is rotated at its size, and the oldest of the retained ones is replaced", async () => {
  const file = scratchFile();
  const log = createLogFile(file, { maxBytes: 10, maxAgeMs: Infinity, maxFiles: 2 });
  for (const text of ["first\n", "second\n", "third\n", "fourth\n"]) await log.send(text);
  expect(["", ".1", ".2", ".3"].map((end) => textOf(file + end))).toEqual([
    "fourth\n",
    "third\n",
    "second\n",
    undefined,
  ]);
});

test("a file is rotated at its age", async () => {
  const file = scratchFile();
  let now = Date.now();
  const log = createLogFile(file, { maxBytes: 1_000, maxAgeMs: 60_000, maxFiles: 2 }, () => now);
  await log.send("first\n");
  now += 59_000;
  await log.send("second\n");
  now += 1_000;
  await log.send("third\n");
  expect([textOf(file), textOf(`${file}.1`)]).toEqual(["third\n", "first\nsecond\n"]);
});

test("a target whose sink never resolves drops what its queue cannot hold, and counts it", async () => {
  const released = Promise.withResolvers<void>();
  const sent: string[] = [];
  const target = createLogTarget({
    sink: {
      async send(text) {
        sent.push(text);
        await released.promise;
      },
      sendNow: () => {},
    },
    maxQueuedBytes: 10,
    onDropped: (count) => target.write(`${count}\n`),
  });
  target.write("in flight\n");
  await expect.poll(() => sent.length).toBe(1);
  for (let line = 0; line < 5; line++) target.write("12345");
  expect(target.dropped()).toBe(3);
  released.resolve();
  await target.flush();
  expect(sent).toEqual(["in flight\n", "1234512345", "3\n"]);
});

test("many loggers of one process share one listener for errors of stderr", () => {
  const before = process.stderr.listenerCount("error");
  for (let i = 0; i < 12; i++) createLogger({ level: "warn", file: join(scratchDirectory(), "toolgate.log") });
  expect(process.stderr.listenerCount("error") - before).toBeLessThanOrEqual(1);
});

test("a full disk drops lines and counts them; when there is space again, the file says so and has whole lines", async () => {
  const directory = scratchDirectory();
  const disk = mountSmallDisk(directory, 1);
  const file = join(directory, "log", "toolgate.log");
  const log = createLogger({ level: "warn", file });
  log.warn("before");
  await log.flush();
  disk.fill(0);
  expect(disk.free()).toBe(0);
  // More than what is left of the file's last page.
  log.warn("during", { reason: "x".repeat(10_000) });
  await expect.poll(() => log.dropped().file).toBe(1);
  disk.empty();
  log.warn("after");
  await log.flush();
  const written = linesOf(file).filter((line) => line.startsWith("{") && line.endsWith("}"));
  expect(written.map((line) => JSON.parse(line))).toMatchObject([
    { message: "before" },
    { message: "after" },
    { message: "lines before this one were dropped", count: 1 },
  ]);
  // Control: the lines are counted for the target that could not take them.
  expect(log.dropped()).toEqual({ file: 1, stderr: 0 });
});

function scratchDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-log-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  return directory;
}

const scratchFile = () => join(scratchDirectory(), "toolgate.log");
const textOf = (file: string) => (existsSync(file) ? readFileSync(file, "utf8") : undefined);
const linesOf = (file: string) =>
  readFileSync(file, "utf8")
    .split("\n")
    .filter((line) => line !== "");

function openLog() {
  const file = scratchFile();
  writeFileSync(file, "", { mode: 0o644 });
  const log = createLogger({ level: "warn", file });
  const lines = async (): Promise<unknown[]> => {
    await log.flush();
    return linesOf(file).map((line) => JSON.parse(line));
  };
  return { log, file, lines };
}
