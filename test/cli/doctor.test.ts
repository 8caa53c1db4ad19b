import { expect, test } from "vitest";
import { EnforcementState, SandboxState } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { clockFinding } from "../../src/cli/commands/doctor.ts";
import { momentOf } from "../../src/view/quantities.ts";
import { makeCertificates } from "../edge/certificates.ts";
import { startServer } from "../edge/server.ts";
import { toolgate } from "./toolgate.ts";

test("doctor names each problem with its next step, goes on after it, and ends with 1", async () => {
  await using made = await makeCertificates().then((certificates) => ({
    ...certificates,
    [Symbol.asyncDispose]: () => certificates.remove(),
  }));
  const { cert, key } = made.server;
  const { url } = await startServer(
    {
      getServerInfo: async () => ({
        version: "1.2.3",
        principal: "ann",
        roles: ["approver"],
        storeId: "sto_1",
        format: 2,
        storeDetails: { copies: 1, requiredCopies: 2, warnings: ["a copy is away: start it"] },
        sandbox: SandboxState.UNAVAILABLE,
        sandboxProblem: "bwrap is missing: apt-get install bubblewrap",
        enforcement: { state: EnforcementState.ADVISORY, reason: "no token is required" },
      }),
    },
    {
      config: { tls: { cert, key, clientCa: undefined } },
      ready: async () => false,
      channels: {
        listChannels: async () => ({
          channels: [
            { name: "ops", lastFailed: 1, lastFailure: "it answered 403\u001b[31m" },
            { name: "gone", disabled: true, lastFailed: 1, lastFailure: "it answered 410" },
          ],
        }),
      },
      agents: {
        listConnectors: async () => ({
          connectors: [
            { kind: "claude", place: "ann@laptop", enforcement: { state: EnforcementState.ENFORCED } },
            {
              kind: "codex",
              place: "ann\u001b[31m",
              enforcement: { state: EnforcementState.ADVISORY, reason: "killed" },
            },
          ],
        }),
      },
    },
  );
  const environment = { TOOLGATE_TOKEN: "approver-token", TOOLGATE_CA: made.ca.certFile };
  const { code, stdout } = await toolgate(["doctor", "--server", url], environment);
  expect(code).toBe(1);
  for (const line of [
    `ok       service      1.2.3 at ${url}; you are ann: approver`,
    "failed   readiness    the store cannot write: it does not answer, is full, is damaged or lacks copies; the log says which",
    "ok       clock        agrees with that of this machine",
    "ok       store        sto_1, format 2, copies connected: 1, required: 2",
    "warning  store        a copy is away: start it",
    "failed   sandbox      commands cannot run: bwrap is missing: apt-get install bubblewrap",
    "warning  approvals    advisory: no token is required",
    "ok       agents       claude at ann@laptop: enforced",
    "warning  agents       codex at ann\\x1b[31m: advisory: killed",
    "                      next: run `toolgate connect --check` there to see what asks",
    `warning  channels     ops: failing, the last attempt failed ${momentOf(1)}: it answered 403\\x1b[31m`,
    "                      next: `toolgate channel test ops` says what to change",
    `warning  channels     gone: disabled, the last attempt failed ${momentOf(1)}: it answered 410`,
    "failed   channels     no channel is reachable: people learn of no request",
  ])
    expect(stdout.split("\n")).toContain(line);
  // The certificates of tests end tomorrow.
  expect(stdout).toMatch(/^warning {2}certificate {2}valid until .*\n {22}next: renew it/m);
  expect(stdout).toMatch(/^failed {3}sources {6}.* is not implemented \[NOT_SERVED\]$/m);

  const json = await toolgate(["doctor", "--server", url, "--json"], environment);
  const findings = json.stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(findings).toHaveLength(stdout.split("\n").filter((line) => /^\w/.test(line)).length);
  expect(findings).toContainEqual({ check: "store", state: "warning", fact: "a copy is away: start it", next: "" });
});

test.each([
  [0, "ok", "agrees with that of this machine"],
  [-90_000, "warning", "the service is 1m 30s behind this machine"],
  [3_600_000, "warning", "the service is 1h 00m ahead of this machine"],
  [Number.NaN, "warning", "the service does not send its time"],
])("a clock that differs by %d ms is %s: %s", (difference, state, fact) => {
  expect(clockFinding({ service: 1_000_000_000 + difference, here: 1_000_000_000 })).toMatchObject({ state, fact });
});
