import {
  GrantScope,
  type PermissionOutcome,
  PermissionOutcomeSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReasonSchema, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord } from "../../src/approval/ports.ts";
import type { CallRecord } from "../../src/call/ports.ts";
import type { Ledger } from "./ledger.ts";
import { viewCall, viewClosed, viewGrant } from "./model.ts";
import type { Replicas } from "./replicas.ts";

/** Ids by the names that the model uses. */
export interface Names {
  /** Returns the id of the nth ask of a call, from 0. */
  ask(call: string, nth: number): string;
  /** Returns the id of the grant that was saved by the ask of a call. */
  grant(call: string): string;
}

/** Creates an observer that reads the service as clients can and writes it as the model does. */
export function createObserver({
  replicas,
  ledger,
  sessions,
}: {
  replicas: Replicas;
  ledger: Ledger;
  sessions: readonly string[];
}) {
  const asks = new Map<string, string[]>();
  const calls = new Map<string, string>();
  const grants = new Map<string, string>();

  async function lookAt(sessionId: string): Promise<string[]> {
    const { store } = replicas.any();
    const session = await store.calls.getSession(sessionId);
    const records = await store.calls.listCalls({ sessionId, limit: 1_000 });
    const lines = records.map(async (record) => {
      return lineOf(record, await store.permissions.asksOf(record.ref));
    });
    return [...(await Promise.all(lines)), ...(session?.closed ? [viewClosed(sessionId)] : [])];
  }

  function lineOf({ ref, part, owner, attempts }: CallRecord, asked: readonly AskRecord[]): string {
    const id = `${ref.sessionId}/${ref.callId}`;
    const ids = asked.map(({ request }) => request.id);
    asks.set(id, ids);
    for (const each of ids) calls.set(each, id);
    return viewCall(id, {
      state: stateOf(part),
      tool: part.tool,
      owner: replicas.names().includes(owner) ? owner : "",
      entered: part.tool === "look" ? attempts : ledger.entries.filter((entry) => entry === id).length,
      asks: asked.map(({ settled }) => {
        const { outcome, by = "", replyId = "" } = settled ?? {};
        return { outcome: outcome === undefined ? "open" : nameOf(outcome), by, replyId };
      }),
    });
  }

  async function lookAtGrants(): Promise<string[]> {
    const all = await replicas.any().store.permissions.listGrants({ includeDead: true, limit: 1_000 });
    return all.map(({ id, permissionId, scope, revoked }) => {
      const name = calls.get(permissionId) ?? permissionId;
      grants.set(name, id);
      return viewGrant(name, scope === GrantScope.PROJECT, revoked === 0);
    });
  }

  const names: Names = { ask: (call, nth) => asks.get(call)?.[nth] ?? "", grant: (call) => grants.get(call) ?? "" };
  return {
    names,
    async look(): Promise<string> {
      const lines = await Promise.all(sessions.map(lookAt));
      return [...lines.flat(), ...(await lookAtGrants())].sort().join("\n");
    },
  };
}

/** Returns a call's state, or the reason of its error. */
function stateOf({ state }: ToolPart): string {
  if (state.case !== "error") return state.case ?? "nothing";
  return ToolErrorReasonSchema.value[state.value.reason]?.localName ?? "";
}

const nameOf = (outcome: PermissionOutcome) => PermissionOutcomeSchema.value[outcome]?.localName ?? "";
