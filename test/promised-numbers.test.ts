import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

/** Numbers that the pages promise, and where the source has them. Tests of behaviour use small ones in their place. */
const numbers: Record<string, readonly [words: string, file: string, code: string][]> = {
  "docs/security.md": [
    ["valid once, for 10 minutes", "src/people/credentials.ts", "codeMs = 600_000"],
    ["plain text, 30 days", "src/people/credential.ts", "signInMs = 30 * 86_400_000"],
    ["at other replicas within a second", "src/compose/server.ts", "everyMs: 1_000, work: credentials.refresh"],
    ["at most 64 files", "src/call/decide.ts", "maxCodeFiles = 64"],
    ["and 8 MiB", "src/call/decide.ts", "maxCodeBytes = 8 * 1_048_576"],
    ["up to 20,000 files", "src/call/bound-files.ts", "maxTreeFiles = 20_000"],
    ["More than 100 files to hide", "src/config/schema.ts", "masks_max: key(\n    count(1_000, 0).default(100)"],
    ["or 50,000 directories to search", "src/sandbox/plan-thread.ts", "maxDirectories = 50_000"],
    ["more than 50,000 directories, or", "src/sandbox/plan-thread.ts", "maxDirectories = 50_000"],
    ["at most 120 s", "src/sandbox/git-history.ts", "maxSearchMs = 120_000"],
    ["500,000 names", "src/sandbox/git-history.ts", "maxNames = 500_000"],
    ["within 15 s MCP and language servers", "src/sandbox/confinement.ts", "defaultPauseMs = 15_000"],
    ["more than 20 paths", "src/tools/process/settle-created.ts", "maxAsked = 20"],
    ["fewer than 2,048 open files", "src/config/schema.ts", "connections: key(count().default(1_024)"],
    ["connections get half", "src/edge/http/connection-caps.ts", "Math.floor(maxDescriptors / 2)"],
    [
      "30 s for one message of a stream",
      "src/config/schema.ts",
      "body_ms: key(milliseconds(3_600_000).default(30_000)",
    ],
    ["15 s for headers", "src/edge/edge.ts", "headersMs = 15_000"],
    ["75 s without a request", "src/edge/edge.ts", "idleMs = 75_000"],
    ["HTTP/2: 120 s", "src/edge/edge.ts", "http2IdleMs = 120_000"],
    ["1,100 open requests", "src/edge/http/socket-limits.ts", "maxConcurrentStreams: 1_100"],
    ["1,000 may be streams", "src/edge/edge.ts", "maxWaitingRpcs = 1_000"],
    ["more than 200 streams at once, or 33 a", "src/edge/http/socket-limits.ts", "burst: 200, perSecond: 33"],
    ["may reset 1,100, or 200 a second", "src/edge/http/socket-limits.ts", "burst: 1_100, perSecond: 200"],
    ["Ten failed sign-ins", "src/people/credentials.ts", "maxFailures = 10"],
    ["in a minute are answered", "src/people/credentials.ts", "failureWindowMs = 60_000"],
    ["over 256 bytes", "src/policy/shell/command.ts", "Buffer.byteLength(text) <= 256"],
    ["at most 200 ms of processor", "src/call/line-analysis.ts", "lineMs: 200"],
    ["2 s of analysis", "src/call/line-analysis.ts", "budgetMs: 2_000"],
    ["in any 10 s", "src/call/line-analysis.ts", "windowMs: 10_000"],
    ["at most 16,000,000 steps", "src/policy/model.ts", "maxMatchSteps = 16_000_000"],
    ["and 256 KiB of them", "src/policy/layers.ts", "maxListBytes = 262_144"],
    ["a session 32 such", "src/call/sessions.ts", "maxRuleLists = 32"],
    ["More than 32 policy files", "src/config/workspace-rules.ts", "maxFiles = 32"],
    ["An input has at most 30 levels", "src/call/check-size.ts", "maxLevels = 30"],
    ["10,000 keys", "src/call/check-size.ts", "maxKeys = 10_000"],
    ["a schema at most 256 KiB", "src/tool/codec.ts", "maxSchemaLength = 262_144"],
    ["and 100 levels", "src/tool/codec.ts", "maxSchemaDepth = 100"],
    ["all but 1 GiB", "src/sandbox/usage-watch.ts", "bytes: 1024 ** 3"],
    ["(5 % of a small one)", "src/sandbox/usage-watch.ts", "reservedPart = 1 / 20"],
  ],
  "docs/reliability.md": [
    ["up to three times in all", "src/call/ends.ts", "maxIdempotentAttempts = 3"],
    ["for up to 10 ms before", "src/call/record-once.ts", "maxUnrecordedMs = 10"],
    ["60 s at most", "src/call/leases.ts", "maxUnclaimedMs = 60_000"],
    // An outage begins up to a third of a lease after the last renewal.
    ["less than seven fifteenths", "src/call/engine.ts", "validShare = 0.8"],
    ["seven fifteenths of a lease", "src/compose/server.ts", "everyMs: config.leaseMs / 3, work: calls.renew"],
    ["in a cluster up to 5 s later", "src/store/redis/link.ts", "checkMs = 5_000"],
  ],
};

const textOf = (path: string) => readFileSync(join(import.meta.dirname, "..", path), "utf8");

test.each(Object.entries(numbers))("numbers of %s are those of the source", (page, rows) => {
  const text = textOf(page).replaceAll(/\s+/g, " ");
  const hasCode = (file: string, code: string) => new RegExp(`${RegExp.escape(code)}(?![\\d_])`).test(textOf(file));
  const wrong = rows.filter(([words, file, code]) => !text.includes(words) || !hasCode(file, code));
  expect(wrong).toEqual([]);
});
