import { createHash } from "node:crypto";
import { create, type JsonObject } from "@bufbuild/protobuf";
import {
  type Grant,
  PermissionOutcome,
  type PermissionSettled,
  PermissionSettledSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
  ToolErrorReason,
  type ToolPart,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { notEditable } from "./answer-refusals.ts";
import { settlementsOf } from "./decisions.ts";
import { coversAsk } from "./grants.ts";
import type { AskRecord, PermissionStore, Settlement } from "./ports.ts";
import { grantsSaved } from "./saved-grants.ts";

/** What the life of a call lends to those who answer for it, since the call changes in the same step as the ask. */
export interface CallChanges {
  /** Ends a call's part with an error. */
  refuse(part: ToolPart, reason: ToolErrorReason, error: string): ToolPart;
  /** Gives a call that is not started other arguments; refuses those that its tool cannot take. */
  edit(
    call: { part: ToolPart; workspace: string },
    input: JsonObject,
    by: string,
  ): { part: ToolPart; difference: string } | "no difference";
  /** The one text that arguments have however they are written. */
  canonical(input: JsonObject): string;
}

/** What of an answer is written down with the ask. */
export type Answer = Partial<
  Pick<PermissionSettled, "by" | "message" | "replyId" | "answerDigest" | "settledWith" | "grantId">
>;

type Content = Pick<PermissionResponse, "reply"> &
  Partial<Pick<PermissionResponse, "message" | "offerId" | "input" | "wholeCall" | "expires">>;

/** Works out what answers come to. */
export type Settlements = ReturnType<typeof createSettlements>;

/** Makes what works out all that one answer changes: a step of the store then writes it, if nothing of it has changed meanwhile. */
export function createSettlements({
  store,
  changes,
  newId,
  now,
}: {
  store: PermissionStore;
  changes: CallChanges;
  newId(prefix: "grt"): string;
  now(): number;
}) {
  /** An end by which the call is not approved: it ends with it, its siblings are withdrawn. A running call is told by its own `ask()`. */
  async function refusal(ask: AskRecord, outcome: PermissionOutcome, answer: Answer = {}): Promise<Settlement> {
    const [reason, error] = refusalText(ask.request, outcome, answer.message);
    const others = await siblings(ask);
    const settled = [
      settledAs(ask, outcome, answer),
      ...others.map((other) =>
        outcome === PermissionOutcome.DENIED
          ? settledAs(other, outcome)
          : settledAs(other, PermissionOutcome.WITHDRAWN, { message: withdrawal(ask.request, outcome) }),
      ),
    ];
    return {
      root: ask.call.root,
      askId: ask.request.id,
      settled,
      calls: [
        {
          ref: ask.call,
          version: ask.version,
          ...(ask.part.state.case === "pending" && { part: changes.refuse(ask.part, reason, error) }),
        },
      ],
      grants: [],
      decisions: settlementsOf([ask, ...others], settled, []),
      expired: outcome === PermissionOutcome.EXPIRED,
    };
  }

  /** Other arguments for the call: whatever it asks was about the old ones. Undefined if they are the same. */
  async function edit(
    ask: AskRecord,
    workspace: string,
    input: JsonObject,
    answer: Answer,
  ): Promise<Settlement | undefined> {
    if (ask.part.state.case !== "pending") throw notEditable(ask);
    const edited = changes.edit({ part: ask.part, workspace }, input, answer.by ?? "");
    if (edited === "no difference") return undefined;
    const message = edited.difference;
    const others = await siblings(ask);
    const settled = [
      settledAs(ask, PermissionOutcome.EDITED, { ...answer, message }),
      ...others.map((other) =>
        settledAs(other, PermissionOutcome.EDITED, { by: answer.by ?? "", settledWith: ask.request.id }),
      ),
    ];
    return {
      root: ask.call.root,
      askId: ask.request.id,
      settled,
      calls: [{ ref: ask.call, version: ask.version, part: edited.part }],
      grants: [],
      decisions: settlementsOf([ask, ...others], settled, []),
      expired: false,
    };
  }

  async function approval(
    ask: AskRecord,
    workspace: string,
    response: PermissionResponse,
    answer: Answer,
  ): Promise<Settlement> {
    const whole = response.wholeCall ? await siblings(ask) : [];
    const grants =
      response.reply === PermissionReply.ALWAYS
        ? grantsSaved([ask, ...whole], workspace, response, answer.by ?? "", { newId, now })
        : [];
    const answered = [ask, ...whole].map((other) => {
      const grantId = grants.find(({ permissionId }) => permissionId === other.request.id)?.id ?? "";
      const outcome = grantId === "" ? PermissionOutcome.ONCE : PermissionOutcome.ALWAYS;
      return settledAs(other, outcome, { ...(other === ask ? answer : along(ask, response, answer)), grantId });
    });
    const { covered, ...seen } = await coveredBy(grants, ask.call.root, answered);
    const byGrant = covered.map(({ ask: other, grant }) =>
      settledAs(other, PermissionOutcome.ALWAYS, {
        ...along(ask, response, answer),
        settledWith: grant.permissionId,
        grantId: grant.id,
      }),
    );
    const settled = [...answered, ...byGrant];
    const asks = [ask, ...whole, ...covered.map((each) => each.ask)];
    const calls = new Map(asks.map((other) => [nameOf(other.call), other]));
    return {
      root: ask.call.root,
      askId: ask.request.id,
      settled,
      calls: [...calls.values()].map(({ call, version }) => ({ ref: call, version })),
      grants,
      decisions: settlementsOf(asks, settled, grants),
      ...seen,
      expired: false,
    };
  }

  /** The other open asks of the tree that would not be asked now, each with a grant of these that it takes. */
  async function coveredBy(
    grants: readonly Grant[],
    root: string,
    answered: readonly PermissionSettled[],
  ): Promise<{ covered: { ask: AskRecord; grant: Grant }[]; asksVersion?: number }> {
    const [{ workspace, agent } = { workspace: "", agent: "" }] = grants;
    if (grants.length === 0) return { covered: [] };
    // The version is read before the asks, so that the step finds out if one is opened in between.
    const { asksVersion } = await store.grantsFor({ root, workspace, agent });
    const open = (await allOpen(store, root)).filter(
      ({ request }) => !answered.some(({ permissionId }) => permissionId === request.id),
    );
    const agents = [...new Set(open.map(({ request }) => request.agent))];
    const living = new Map(
      await Promise.all(
        agents.map(async (agent) => [agent, (await store.grantsFor({ root, workspace, agent })).grants] as const),
      ),
    );
    const covered = open.flatMap((ask) => {
      const { request, part } = ask;
      const used = coversAsk([...grants, ...(living.get(request.agent) ?? [])], request, part.tool);
      const grant = used?.find((each) => grants.includes(each));
      return grant ? [{ ask, grant }] : [];
    });
    return { covered, asksVersion };
  }

  /** The other open asks of the same call. */
  async function siblings({ call, request, part }: AskRecord): Promise<AskRecord[]> {
    if (part.permissionIds.every((id) => id === request.id)) return [];
    return (await store.asksOf(call)).filter((other) => !other.settled && other.request.id !== request.id);
  }

  function settledAs(ask: AskRecord, outcome: PermissionOutcome, answer: Answer = {}): PermissionSettled {
    return create(PermissionSettledSchema, {
      ...answer,
      permissionId: ask.request.id,
      sessionId: ask.call.sessionId,
      callId: ask.call.callId,
      outcome,
      time: now(),
    });
  }

  /** Names what was answered; `expected_digest` and `reply_id` are about the sending, not the answer. */
  function digestOf({ reply, message, offerId, input, wholeCall, expires }: Content): string {
    const content = [reply, message ?? "", offerId ?? "", input ? changes.canonical(input) : "", wholeCall === true];
    return createHash("sha256")
      .update(JSON.stringify([...content, expires ?? 0]))
      .digest("base64url");
  }

  /** How an ask is settled that was not named: as if it had been answered itself, in the plainest way. */
  function along({ request }: AskRecord, { reply }: PermissionResponse, { by = "" }: Answer): Answer {
    return { by, settledWith: request.id, answerDigest: digestOf({ reply }) };
  }

  return { refusal, edit, approval, digestOf };
}

/** Every ask that is open in a tree. */
export async function allOpen(store: PermissionStore, root: string): Promise<AskRecord[]> {
  const open: AskRecord[] = [];
  for (;;) {
    const after = open.at(-1)?.request.id;
    const page = await store.openAsks({ root, ...(after && { after }), limit: 500 });
    open.push(...page);
    if (page.length < 500) return open;
  }
}

/** A call's name in its tree. */
export const nameOf = ({ sessionId, callId }: CallRef) => `${sessionId}/${callId}`;

function withdrawal({ permission }: PermissionRequest, outcome: PermissionOutcome): string {
  return `${permission} was ${outcome === PermissionOutcome.EXPIRED ? "not answered in time" : "rejected"}`;
}

/** Why a call ends whose ask was not approved, and the words for the model. */
export function refusalText(
  request: PermissionRequest,
  outcome: PermissionOutcome | undefined,
  message = "",
): [ToolErrorReason, string] {
  const what = `${request.permission} ${request.patterns.map((pattern) => JSON.stringify(pattern)).join(", ")}`;
  if (outcome === PermissionOutcome.EXPIRED) {
    return [
      ToolErrorReason.EXPIRED,
      `Nobody answered the permission request for ${what} in time, so the call was not run. Go on without it, or ask the user.`,
    ];
  }
  if (outcome === PermissionOutcome.DENIED) {
    return [
      ToolErrorReason.DENIED,
      `${what} is not allowed: it needs a person's approval, and nobody is there to be asked. Do not try it again; go on without it.`,
    ];
  }
  const advice =
    message === "" ? "Do not try it again; go on without it, or ask the user." : `Their advice: ${message}`;
  return [ToolErrorReason.REJECTED, `The user rejected this call (${what}). ${advice}`];
}
