import { hash } from "node:crypto";
import { create, type JsonObject } from "@bufbuild/protobuf";
import { BeginCallRequestSchema, FinishCallRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import type { Principal } from "../core/principal.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import type { FileRules } from "../policy/file-rules.ts";
import { type BeginOutcome, beginHosted } from "./begin.ts";
import { cancelCall } from "./cancel.ts";
import type { Engine } from "./engine.ts";
import { finishDelegated } from "./finish-delegated.ts";
import { checkServing } from "./runs.ts";

/** An agent that this service started for a call, and the session in which it makes its calls. */
interface StartedAgent {
  parentCall: CallRef;
  childSession: string;
}

/** A use of one of the agent's own tools. */
interface OwnUse {
  /** Kind of the agent. */
  kind: string;
  tool: string;
  callId: string;
  input: JsonObject;
  /** Canonical directory in which the agent works. */
  cwd: string;
}

/** Delegated calls of agents that this service started: they see the same files, and their session exists. */
export function ownToolCallsOf(engine: Engine) {
  const { layersFor, policy, sessions, store } = engine;

  /** Returns the caller of the call that started the agent: calls of the agent are that principal's. */
  async function principalOf({ parentCall: { sessionId, callId } }: StartedAgent): Promise<Principal> {
    const record = await store.getCall(sessionId, callId);
    if (!record) throw new Error(`call ${callId} of session ${sessionId} is gone`);
    const { principal: id, person = id } = record.spec;
    const { callerUid: user, person: behind } = record.part;
    const rights = { roles: new Set(["caller"] as const), agents: ["*"], workspaces: ["*"] };
    return { id, ...rights, lineage: [person], behind, answersOwn: false, ...(user !== undefined && { user }) };
  }

  return {
    principalOf,
    /** Returns the rules about files in the agent's session, without anything that a single call was allowed. */
    async fileRulesOf(agent: StartedAgent, name: string): Promise<FileRules> {
      const { session, ancestors, workspace } = await sessions.open(
        await principalOf(agent),
        agent.childSession,
        "call",
      );
      const { directory } = workspace;
      const layers = layersFor({
        session,
        ancestors,
        agent: name,
        workspace: workspaceRoot(workspace.name),
        directory,
      });
      return policy.fileRules(layers);
    },
    /** Accepts a use and waits for the decision, until the signal is aborted. */
    async begin(
      agent: StartedAgent,
      { kind, tool, callId, input, cwd }: OwnUse,
      signal: AbortSignal,
    ): Promise<Exclude<BeginOutcome, { case: "waiting" }>> {
      checkServing(engine);
      const principal = await principalOf(agent);
      engine.lines.checkBudget(principal.id);
      const opened = await sessions.open(principal, agent.childSession, "call");
      const hosted = { opened, place: { directory: cwd, isDiskShared: true } };
      const request = create(BeginCallRequestSchema, {
        ...{ kind, foreignSession: agent.childSession, foreignTool: tool, foreignCallId: callId, input, cwd },
        waitMs: roundMs,
      });
      for (;;) {
        const outcome = await beginHosted(engine, principal, hosted, request, signal);
        if (outcome.case !== "waiting") return outcome;
      }
    },
    /** Records the result of a use that began; `ranInput` is what the agent ran in place of the approved input. */
    async finish(
      agent: StartedAgent,
      assignment: string,
      {
        result,
        exit,
        ranInput,
      }: {
        result: { case: "output" | "error"; value: string };
        exit?: number | undefined;
        ranInput?: JsonObject | undefined;
      },
    ): Promise<void> {
      const inputDigest = ranInput === undefined ? "" : hash("sha256", canonicalJson(ranInput), "hex");
      const report = { assignment, result, inputDigest, ...(exit !== undefined && { exit }) };
      await finishDelegated(engine, await principalOf(agent), create(FinishCallRequestSchema, report));
    },
    /** Ends a use that waits for an answer. */
    async cancel({ childSession }: StartedAgent, callId: string, reason: string): Promise<void> {
      const record = await store.getCall(childSession, callId);
      if (record) await cancelCall(engine, record.ref, reason);
    },
  };
}

/** Time of one wait for the decision. */
const roundMs = 600_000;
