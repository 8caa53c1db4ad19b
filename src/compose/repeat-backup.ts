import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { SimulatePolicyRequestSchema } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { createConnectors } from "../agents/connect/connectors.ts";
import { createSessions } from "../call/sessions.ts";
import { createSimulation, decidedOtherwise } from "../call/simulation.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import type { Principal } from "../core/principal.ts";
import { openRecordTable, recordKinds } from "../store/record-tables.ts";
import { startSandbox } from "./built-in-tools.ts";
import { liveConfig } from "./live-config.ts";
import { createPolicyParts } from "./policy.ts";
import { openStore, restoreInto } from "./store.ts";

/**
 * Repeats the recorded decisions of a backup by the rules of a configuration, in this version. It opens a copy of the store and
 * composes only what judges: without an engine no call of the copy can run, and nothing leaves the process.
 */
export async function repeatDecisions(config: Config, backup: string) {
  await using scope = new AsyncDisposableStack();
  const directory = await mkdtemp(join(tmpdir(), "toolgate-upgrade-"));
  scope.defer(() => rm(directory, { recursive: true, force: true }));
  await restoreInto(directory, backup);
  const place = { ...config, store: "sqlite" as const, dataDirectory: directory, auditExports: [] };
  const { calls, permissions } = await openStore(place, silent);
  scope.defer(calls.close);
  // What the sandbox hides is no part of a decision.
  const { loginFile: _, ...confined } = place;
  const { sandbox } = await startSandbox(confined, silent, scope);
  const { rules } = liveConfig(config);
  const connectors = createConnectors(openRecordTable(config.dataDirectory, recordKinds.connectors), calls.now);
  const simulation = createSimulation({
    ...createPolicyParts(config, rules, connectors.files),
    ...{ rules, confines: sandbox.wall, getCall: calls.getCall },
    ...{ listDecisions: permissions.listDecisions, listAudits: permissions.listAudits },
    sessions: createSessions({ store: calls, workspaces: {}, agents: new Set() }),
  });
  const request = create(SimulatePolicyRequestSchema);
  for await (const { kind } of simulation.simulate(operator, request, AbortSignal.timeout(maxMs))) {
    if (kind.case !== "summary") continue;
    const { judged, notJudged, unfaithful, unfaithfulExample, leftOut } = kind.value;
    const isOtherwise = ({ reason }: { reason: string }) => reason.includes(decidedOtherwise);
    return {
      judged: judged + unfaithful,
      otherwise: [
        ...notJudged.filter(isOtherwise),
        ...(unfaithful > 0 ? [{ reason: unfaithfulExample, decisions: unfaithful }] : []),
      ],
      notJudged: [
        ...notJudged.filter((each) => !isOtherwise(each)),
        ...(leftOut > 0 ? [{ reason: "the check computes for 10 s at most", decisions: leftOut }] : []),
      ],
    };
  }
  throw new Error("a simulation ended without its summary");
}

const operator: Principal = {
  ...{ id: "upgrade", roles: new Set(["approver"] as const), agents: ["*"], workspaces: ["*"], lineage: ["upgrade"] },
  answersOwn: false,
};
const maxMs = 600_000;
const silent: Logger = { debug() {}, info() {}, warn() {}, error() {} };
