import { createHash } from "node:crypto";
import { create, type JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type Grant,
  GrantSchema,
  GrantScope,
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
import { settlementsOf } from "./decisions.ts";
import { RequestError } from "./errors.ts";
import { coversAsk } from "./grants.ts";
import type { AskRecord, CallRef, PermissionStore, Settlement } from "./ports.ts";
import type { Principal } from "./principal.ts";

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

/** Settles asks: by people, by their deadline, or because nobody is there. */
export type Answers = ReturnType<typeof createAnswers>;

export function createAnswers({
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
  /** Settles an ask with a person's answer. Of all answers and the deadline exactly one wins; this returns if it is this one. */
  async function reply(principal: Principal, workspace: string, response: PermissionResponse): Promise<void> {
    checkExpiry(response);
    for (;;) {
      const ask = await store.getAsk(response.sessionId, response.permissionId);
      if (!ask) throw noSuchPermission(response);
      if (isOwn(ask, principal)) throw ownCall(response, principal);
      if (ask.settled) return settledBefore(ask.settled, principal, response, digestOf(response));
      if (response.expectedDigest !== "" && response.expectedDigest !== ask.request.digest) {
        throw new RequestError(
          ErrorReason.ASK_CHANGED,
          `permission request ${ask.request.id} is not what was shown: its digest is ${ask.request.digest}; show it again`,
          { permission_id: ask.request.id, digest: ask.request.digest },
        );
      }
      const outcome = await store.settle(await settlementOf(ask, principal, workspace, response));
      if (outcome.result === "won") return;
      if (outcome.result === "retry") continue;
      if (outcome.settled) return settledBefore(outcome.settled, principal, response, digestOf(response));
      // The deadline passed before the reaper came by; the next round tells what became of it.
      await expire(ask);
    }
  }

  async function settlementOf(
    ask: AskRecord,
    principal: Principal,
    workspace: string,
    response: PermissionResponse,
  ): Promise<Settlement> {
    const { reply, replyId, message, input } = response;
    const answer = { by: principal.id, replyId, answerDigest: digestOf(response) };
    if (reply === PermissionReply.REJECT) return await refusal(ask, PermissionOutcome.REJECT, { ...answer, message });
    return (input && (await edit(ask, workspace, input, answer))) ?? (await approval(ask, workspace, response, answer));
  }

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
    const grants = response.reply === PermissionReply.ALWAYS ? save([ask, ...whole], workspace, response, answer) : [];
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

  /** The grants that "always" saves: for the answered ask, which comes first, the chosen offer, for others their own first. */
  function save(
    asks: readonly AskRecord[],
    workspace: string,
    { offerId, expires }: PermissionResponse,
    { by = "" }: Answer,
  ): Grant[] {
    const grants = asks.flatMap(({ request, call, part }, i) => {
      const offer = request.offers.find(({ id }) => i > 0 || offerId === "" || id === offerId);
      if (!offer?.match && i === 0 && offerId !== "") throw noOffer(request, `no offer ${offerId}`);
      if (!offer?.match) return [];
      const { scope, text, binding } = offer;
      const grant = { scope, binding, workspace, tool: part.tool, sessionId: call.root, grantedBy: by };
      return [offer.match, ...offer.also].map((match) =>
        create(GrantSchema, {
          ...grant,
          match,
          text: expires === 0 ? text : `${text}, at most until ${new Date(expires).toISOString()}`,
          id: newId("grt"),
          permission: request.permission,
          permissionId: request.id,
          created: now(),
          // Whichever is earlier; 0 is never.
          expires: Math.min(offer.expires || expires, expires || offer.expires),
          agent: scope === GrantScope.AGENT ? request.agent : "",
        }),
      );
    });
    const [answered] = asks;
    if (grants.length === 0 && answered) throw noOffer(answered.request, "nothing to save");
    return grants;
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
    const open = (await allOpen(root)).filter(
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

  /** Rejects all that is open in a session and its descendants; what somebody else settles meanwhile stands. */
  async function rejectAll(
    principal: Principal,
    tree: { root: string; sessionId: string; message: string },
  ): Promise<PermissionSettled[]> {
    const settled: PermissionSettled[] = [];
    const tried = new Set<string>();
    for (const { request, call } of await allOpen(tree.root)) {
      if (!request.ancestry.includes(tree.sessionId) || tried.has(nameOf(call))) continue;
      tried.add(nameOf(call));
      const end = await rejectCall(principal, call, tree.message);
      if (end) settled.push(end);
    }
    return settled;
  }

  async function allOpen(root: string): Promise<AskRecord[]> {
    const open: AskRecord[] = [];
    for (;;) {
      const after = open.at(-1)?.request.id;
      const page = await store.openAsks({ root, ...(after && { after }), limit: 500 });
      open.push(...page);
      if (page.length < 500) return open;
    }
  }

  async function rejectCall(
    principal: Principal,
    call: CallRef,
    message: string,
  ): Promise<PermissionSettled | undefined> {
    for (;;) {
      const ask = (await store.asksOf(call)).find(({ settled }) => !settled);
      if (!ask || isOwn(ask, principal)) return undefined;
      const answer = { by: principal.id, message, answerDigest: digestOf({ reply: PermissionReply.REJECT, message }) };
      const settlement = await refusal(ask, PermissionOutcome.REJECT, answer);
      const { result } = await store.settle(settlement);
      if (result === "won") return settlement.settled[0];
      if (result === "lost") await expire(ask);
    }
  }

  /** Settles an ask whose deadline has passed; the call ends EXPIRED. Does nothing if somebody answered first. */
  async function expire(ask: AskRecord): Promise<void> {
    const { result } = await store.settle(await refusal(ask, PermissionOutcome.EXPIRED));
    if (result !== "retry") return;
    const again = await store.getAsk(ask.call.sessionId, ask.request.id);
    if (again && !again.settled) await expire(again);
  }

  /** Settles a call's open asks DENIED: nobody is there to be asked. The call ends with it. */
  async function deny(call: CallRef): Promise<void> {
    const ask = (await store.asksOf(call)).find(({ settled }) => !settled);
    if (!ask) return;
    const { result } = await store.settle(await refusal(ask, PermissionOutcome.DENIED));
    if (result === "retry") await deny(call);
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

  function checkExpiry({ expires }: PermissionResponse): void {
    if (expires === 0 || expires > now()) return;
    throw new RequestError(
      ErrorReason.INVALID_MESSAGE,
      `expires is ${new Date(expires).toISOString()}, which has passed; name a later time, or answer once`,
      { field: "expires" },
    );
  }

  return {
    reply,
    rejectAll,
    deny,
    /** Settles every ask whose deadline has passed. */
    async expireAsks(): Promise<void> {
      for (const ask of await store.expiredAsks(100)) await expire(ask);
    },
  };
}

type Answer = Partial<
  Pick<PermissionSettled, "by" | "message" | "replyId" | "answerDigest" | "settledWith" | "grantId">
>;

type Content = Pick<PermissionResponse, "reply"> &
  Partial<Pick<PermissionResponse, "message" | "offerId" | "input" | "wholeCall" | "expires">>;

const nameOf = ({ sessionId, callId }: CallRef) => `${sessionId}/${callId}`;

/** Who made a call never answers for it. */
function isOwn(ask: AskRecord, principal: Principal): boolean {
  return ask.principal === principal.id && !principal.answersOwn;
}

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

/** An answer to an ask that is settled: the same one again is fine, another one is told who won. */
function settledBefore(
  settled: PermissionSettled,
  principal: Principal,
  { replyId, permissionId }: PermissionResponse,
  answerDigest: string,
): void {
  const isSameId = replyId !== "" && replyId === settled.replyId;
  const isSame = settled.by === principal.id && settled.answerDigest === answerDigest && replyId === settled.replyId;
  if (isSame) return;
  if (isSameId) {
    throw new RequestError(
      ErrorReason.REPLY_ID_REUSED,
      `reply_id ${replyId} was used for another answer to ${permissionId}; send a new one`,
      { permission_id: permissionId, reply_id: replyId },
    );
  }
  const outcome = outcomeName(settled.outcome);
  throw settled.by !== ""
    ? new RequestError(
        ErrorReason.ALREADY_ANSWERED,
        `permission request ${permissionId} was answered "${outcome}" by ${settled.by}`,
        { permission_id: permissionId, by: settled.by },
        { settled },
      )
    : new RequestError(
        ErrorReason.ASK_CLOSED,
        `permission request ${permissionId} is closed: ${outcome}${settled.message === "" ? "" : ` (${settled.message})`}`,
        { permission_id: permissionId, outcome },
        { settled },
      );
}

function outcomeName(outcome: PermissionOutcome): string {
  const name = Object.entries(PermissionOutcome).find(([, value]) => value === outcome)?.[0];
  return (name ?? "unspecified").toLowerCase();
}

function noSuchPermission({ sessionId, permissionId }: PermissionResponse): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_PERMISSION,
    `session ${sessionId} has no permission request ${permissionId}; ListPermissions shows the open ones`,
    { session_id: sessionId, permission_id: permissionId },
  );
}

function ownCall({ permissionId }: PermissionResponse, { id }: Principal): RequestError {
  return new RequestError(
    ErrorReason.OWN_CALL,
    `permission request ${permissionId} belongs to a call that ${id} made; somebody else has to answer it`,
    { permission_id: permissionId },
  );
}

function noOffer({ id }: PermissionRequest, what: string): RequestError {
  return new RequestError(
    ErrorReason.NO_OFFER,
    `permission request ${id} has ${what}; choose one of its offers, answer once, or reject`,
    { permission_id: id },
  );
}

function notEditable({ request: { id }, part }: AskRecord): RequestError {
  return new RequestError(
    ErrorReason.NOT_EDITABLE,
    `permission request ${id} comes from the running ${part.tool}, whose arguments are in use; answer once, always or reject`,
    { permission_id: id },
  );
}
