import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type Grant,
  GrantSchema,
  GrantScope,
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
  PermissionOutcome,
  PermissionReason,
  type PermissionSettled,
  PermissionSettledSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  PermissionRequestSchema,
  type PermissionResponse,
  ToolErrorReason,
  type ToolPart,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { RequestError } from "./errors.ts";
import { covers, offersFor } from "./grants.ts";
import type { Layers, Policy, Question } from "./policy.ts";
import { strictest } from "./policy.ts";
import type { AskRecord, PermissionStore, Settlement } from "./ports.ts";
import type { Principal } from "./principal.ts";

/** Whose call is judged: the session (with its ancestors, root first), the agent, and the tool as grants know it. */
export interface Subject {
  session: Session | undefined;
  ancestors: readonly Session[];
  agent: string;
  /** The name of the workspace root. */
  workspace: string;
  /** The canonical folder of the session. */
  directory: string;
  tool: string;
  /** What grants for this tool are bound to. */
  binding: string;
}

/** What holds for all that a call asks. */
export interface Verdict {
  /** The strictest of the decisions; ALLOW if nothing is asked. */
  action: PermissionAction;
  decisions: PermissionDecision[];
  /** What a person must be asked: one question for each kind. */
  needs: (Question & {
    /** Nothing can be saved for it: it is asked each time. */
    onceOnly?: boolean;
  })[];
  /** The rules version of the session tree, where a grant was relied on. */
  rulesVersion?: number;
}

/** What a question is judged by, where it is not simply what holds for the call. */
export interface JudgedBy {
  /** In place of the subject's own. */
  layers?: Layers;
  /** Whether grants count; a call that relies on a wider one adopts it, a mere question does not. Default adopt. */
  grants?: "adopt" | "look" | "none";
}

/** Judges calls, and keeps asks, answers and grants. */
export type Permissions = ReturnType<typeof createPermissions>;

/** Ends a call's part with an error; the life of a call lends it, since a reject or expiry ends the call in the same step. */
type Refuse = (part: ToolPart, reason: ToolErrorReason, error: string) => ToolPart;

export function createPermissions({
  store,
  policy,
  layersFor,
  refuse,
  newId,
  now,
}: {
  store: PermissionStore;
  policy: Policy;
  layersFor(subject: Subject): Layers;
  refuse: Refuse;
  newId(prefix: "per" | "grt"): string;
  now(): number;
}) {
  /** Judges what a call asks, with grants where the layers say ask. */
  async function decide(
    questions: readonly Question[],
    subject: Subject,
    { layers = layersFor(subject), grants = "adopt" }: JudgedBy = {},
  ): Promise<Verdict> {
    const judged = questions.map((question) => ({ question, decisions: policy.judge(question, layers) }));
    const asked = judged.filter(({ decisions }) => strictest(decisions) === PermissionAction.ASK);
    const denied = judged.some(({ decisions }) => strictest(decisions) === PermissionAction.DENY);
    const { session } = subject;
    const relied =
      asked.length === 0 || denied || grants === "none" || !session
        ? undefined
        : await rely(judged, session, subject, grants === "adopt");
    const decisions = judged.flatMap(({ decisions }) => decisions);
    const needs = merge(
      judged
        .filter(({ decisions }) => strictest(decisions) === PermissionAction.ASK)
        .map(({ question, decisions }) => ({
          ...(question.restricts ? askedOf(question, decisions) : question),
          ...(isAlwaysAsked(decisions) && { onceOnly: true }),
        })),
    );
    return {
      action:
        judged.length === 0
          ? PermissionAction.ALLOW
          : strictest(judged.map(({ decisions }) => ({ action: strictest(decisions) }))),
      decisions,
      needs,
      ...(relied !== undefined && { rulesVersion: relied }),
    };
  }

  /** Turns ASK into ALLOW where grants cover every pattern of a question; returns the rules version if any did. */
  async function rely(
    judged: { question: Question; decisions: PermissionDecision[] }[],
    session: Session,
    subject: Subject,
    adopt: boolean,
  ): Promise<number | undefined> {
    const root = session.rootSessionId;
    // The version is read before a grant is adopted, so that a revocation in between shows at the start mark.
    const { grants, rulesVersion } = await store.grantsFor({
      root,
      workspace: subject.workspace,
      agent: subject.agent,
    });
    const adopted = new Map<string, boolean>();
    const lives = async (grant: Grant) => {
      if (grant.scope === GrantScope.SESSION || !adopt) return true;
      if (!adopted.has(grant.id)) adopted.set(grant.id, await store.adoptGrant(root, grant.id));
      return adopted.get(grant.id) === true;
    };
    const covering = async (question: Question, pattern: string) => {
      for (const grant of grants)
        if (serves(grant, subject, question) && covers(grant.match, pattern) && (await lives(grant))) return grant;
      return undefined;
    };
    const found = await Promise.all(
      judged.map(async ({ question, decisions }) => {
        const asked = decisions.filter(({ action }) => action === PermissionAction.ASK);
        const by = await Promise.all(
          asked.map(({ pattern }) => (question.patterns.includes(pattern) ? covering(question, pattern) : undefined)),
        );
        if (asked.length === 0 || by.some((grant) => !grant) || isAlwaysAsked(decisions)) return false;
        for (const [i, decision] of asked.entries()) {
          decision.action = PermissionAction.ALLOW;
          decision.layer = PermissionLayer.GRANT;
          decision.grantId = by[i]?.id ?? "";
          decision.reasonCode = PermissionReason.GRANT;
          decision.reason = `grant ${decision.grantId}: ${by[i]?.text}`;
        }
        return true;
      }),
    );
    return found.includes(true) ? rulesVersion : undefined;
  }

  /** Writes down one ask; `id` is empty where nothing is opened. */
  function request(
    question: Verdict["needs"][number] & { metadata?: PermissionRequest["metadata"] },
    ask: MessageInitShape<typeof PermissionRequestSchema>,
    subject: Subject,
    id: string,
  ): PermissionRequest {
    const offers = question.onceOnly
      ? []
      : offersFor({
          permission: question.permission,
          patterns: question.patterns,
          agent: subject.agent,
          workspace: subject.workspace,
          binding: bindingOf(subject, question),
        });
    return create(PermissionRequestSchema, {
      ...ask,
      id,
      permission: question.permission,
      patterns: [...question.patterns],
      metadata: question.metadata ?? {},
      always: offers.slice(0, 1).map(({ text }) => text),
      ancestry: [...subject.ancestors.map((ancestor) => ancestor.id), ...(subject.session ? [subject.session.id] : [])],
      created: now(),
      offers,
    });
  }

  /** Settles an ask with a person's answer. Of all answers and the deadline exactly one wins; this returns if it is this one. */
  async function reply(principal: Principal, session: Session, response: PermissionResponse): Promise<void> {
    for (;;) {
      const ask = await store.getAsk(response.sessionId, response.permissionId);
      if (!ask) throw noSuchPermission(response);
      if (ask.principal === principal.id && !principal.answersOwn) {
        throw new RequestError(
          ErrorReason.OWN_CALL,
          `permission request ${response.permissionId} belongs to a call that ${principal.id} made; somebody else has to answer it`,
          { permission_id: response.permissionId },
        );
      }
      if (ask.settled) return settledBefore(ask.settled, principal, response);
      if (response.expectedDigest !== "" && response.expectedDigest !== ask.request.digest) {
        throw new RequestError(
          ErrorReason.ASK_CHANGED,
          `permission request ${ask.request.id} is not what was shown: its digest is ${ask.request.digest}; show it again`,
          { permission_id: ask.request.id, digest: ask.request.digest },
        );
      }
      const settlement =
        response.reply === PermissionReply.REJECT
          ? await rejection(ask, principal, response)
          : await approval(ask, principal, session, response);
      const { result } = await store.settle(settlement);
      if (result === "won") return;
      // Either somebody else won, which the next round tells, or the deadline passed before the reaper came by.
      if (result === "lost") await expire(ask);
    }
  }

  /** An ask's end by reject: the call ends with it, its siblings are withdrawn. A running call is told by its own `ask()`. */
  async function rejection(
    ask: AskRecord,
    principal: Principal,
    { message, replyId }: PermissionResponse,
  ): Promise<Settlement> {
    return await refusal(ask, false, PermissionOutcome.REJECT, { by: principal.id, message, replyId });
  }

  async function refusal(
    ask: AskRecord,
    expired: boolean,
    outcome: PermissionOutcome,
    answer: { by: string; message: string; replyId: string },
  ): Promise<Settlement> {
    const [reason, error] = refusalText(ask.request, outcome, answer.message);
    const siblings = (await store.asksOf(ask.call)).filter(
      ({ request, settled }) => !settled && request.id !== ask.request.id,
    );
    return {
      root: ask.call.root,
      askId: ask.request.id,
      settled: [
        settledAs(ask, outcome, answer),
        ...siblings.map((other) =>
          outcome === PermissionOutcome.DENIED
            ? settledAs(other, outcome, {})
            : settledAs(other, PermissionOutcome.WITHDRAWN, { message: withdrawal(ask.request, outcome) }),
        ),
      ],
      calls: [
        {
          ref: ask.call,
          version: ask.version,
          ...(ask.part.state.case === "pending" && { ended: refuse(ask.part, reason, error) }),
        },
      ],
      expired,
    };
  }

  async function approval(
    ask: AskRecord,
    principal: Principal,
    session: Session,
    { reply, offerId, replyId }: PermissionResponse,
  ): Promise<Settlement> {
    const answer = { by: principal.id, replyId };
    const { request, call, version } = ask;
    const only = { root: call.root, askId: request.id, expired: false };
    if (reply === PermissionReply.ONCE) {
      return { ...only, settled: [settledAs(ask, PermissionOutcome.ONCE, answer)], calls: [{ ref: call, version }] };
    }
    const offer = offerId === "" ? request.offers[0] : request.offers.find(({ id }) => id === offerId);
    if (!offer?.match) {
      throw new RequestError(
        ErrorReason.NO_OFFER,
        `permission request ${request.id} has ${offerId === "" ? "nothing to save" : `no offer ${offerId}`}; answer once or reject`,
        { permission_id: request.id },
      );
    }
    const grant = create(GrantSchema, {
      id: newId("grt"),
      scope: offer.scope,
      sessionId: call.root,
      permission: request.permission,
      match: offer.match,
      text: offer.text,
      workspace: workspaceRoot(session.workspace),
      tool: ask.part.tool,
      binding: offer.binding,
      permissionId: request.id,
      grantedBy: principal.id,
      created: now(),
      expires: offer.expires,
      agent: offer.scope === GrantScope.AGENT ? request.agent : "",
    });
    const covered = await coveredBy(grant, ask);
    const settled = [ask, ...covered].map((other) =>
      settledAs(other, PermissionOutcome.ALWAYS, {
        ...answer,
        replyId: other === ask ? replyId : "",
        grantId: grant.id,
      }),
    );
    const calls = new Map([ask, ...covered].map((other) => [`${other.call.sessionId}/${other.call.callId}`, other]));
    return {
      ...only,
      settled,
      calls: [...calls.values()].map((other) => ({ ref: other.call, version: other.version })),
      grant,
    };
  }

  /** The other open asks of the tree that a grant covers completely. */
  async function coveredBy(grant: Grant, ask: AskRecord): Promise<AskRecord[]> {
    const open = await store.openAsks({ root: ask.call.root, limit: 1_000 });
    return open.filter(
      ({ request, part }) =>
        request.id !== ask.request.id &&
        request.permission === grant.permission &&
        part.tool === grant.tool &&
        (grant.scope !== GrantScope.AGENT || request.agent === grant.agent) &&
        request.offers[0]?.binding === grant.binding &&
        request.patterns.length > 0 &&
        request.patterns.every((pattern) => covers(grant.match, pattern)),
    );
  }

  /** Settles an ask whose deadline has passed; the call ends EXPIRED. Does nothing if somebody answered first. */
  async function expire(ask: AskRecord): Promise<void> {
    const { result } = await store.settle(
      await refusal(ask, true, PermissionOutcome.EXPIRED, { by: "", message: "", replyId: "" }),
    );
    if (result !== "retry") return;
    const again = await store.getAsk(ask.call.sessionId, ask.request.id);
    if (again && !again.settled) await expire(again);
  }

  /** Settles a call's open asks DENIED: nobody is there to be asked. The call ends with it. */
  async function deny(call: AskRecord["call"]): Promise<void> {
    const ask = (await store.asksOf(call)).find(({ settled }) => !settled);
    if (!ask) return;
    const { result } = await store.settle(
      await refusal(ask, false, PermissionOutcome.DENIED, { by: "", message: "", replyId: "" }),
    );
    if (result === "retry") await deny(call);
  }

  function settledAs(
    ask: AskRecord,
    outcome: PermissionOutcome,
    answer: { by?: string; message?: string; replyId?: string; grantId?: string },
  ): PermissionSettled {
    return create(PermissionSettledSchema, {
      ...answer,
      permissionId: ask.request.id,
      sessionId: ask.call.sessionId,
      callId: ask.call.callId,
      outcome,
      time: now(),
    });
  }

  return {
    decide,
    request,
    reply,
    deny,
    /** Settles every ask whose deadline has passed. */
    async expireAsks(): Promise<void> {
      for (const ask of await store.expiredAsks(100)) await expire(ask);
    },
    /** Open asks, oldest first, of sessions that may be seen. */
    async list(filter: {
      root?: string;
      after?: string;
      limit: number;
      sees(ask: AskRecord): Promise<boolean>;
    }): Promise<{ asks: AskRecord[]; next?: string }> {
      const asks: AskRecord[] = [];
      for (let after = filter.after; ; ) {
        const page = await store.openAsks({
          ...(filter.root && { root: filter.root }),
          ...(after && { after }),
          limit: 500,
        });
        for (const ask of page) {
          if (await filter.sees(ask)) asks.push(ask);
          if (asks.length === filter.limit) return { asks, next: ask.request.id };
        }
        after = page.at(-1)?.request.id;
        if (page.length < 500) return { asks };
      }
    },
    listGrants: store.listGrants,
    /** Ends a grant: once it resolves no call starts on the strength of it. */
    async revoke(grantId: string): Promise<Grant> {
      const grant = await store.revokeGrant(grantId);
      if (!grant)
        throw new RequestError(ErrorReason.NO_SUCH_GRANT, `grant ${grantId} is not known`, { grant_id: grantId });
      return grant;
    },
  };
}

/** What a grant for this question is bound to: for a command also its working directory. */
function bindingOf(subject: Subject, question: Question): string {
  return question.cwd === undefined ? subject.binding : `${subject.binding}:${question.cwd}`;
}

function serves(grant: Grant, subject: Subject, question: Question): boolean {
  return (
    grant.permission === question.permission &&
    grant.tool === subject.tool &&
    grant.binding === bindingOf(subject, question) &&
    (grant.scope !== GrantScope.AGENT || grant.agent === subject.agent)
  );
}

/** What the engine itself asks, and what nobody knows the rules of, no grant answers. */
function isAlwaysAsked(decisions: readonly PermissionDecision[]): boolean {
  return decisions.some(
    ({ action, layer, reasonCode }) =>
      action === PermissionAction.ASK &&
      (layer === PermissionLayer.ENGINE || reasonCode === PermissionReason.BROKEN_POLICY),
  );
}

/** One question for each kind (and working directory), with the patterns of all. */
function merge(questions: Verdict["needs"]): Verdict["needs"] {
  const merged = new Map<string, Verdict["needs"][number]>();
  for (const question of questions) {
    const key = `${question.permission}\n${question.cwd ?? ""}`;
    const same = merged.get(key);
    if (!same) {
      merged.set(key, question);
      continue;
    }
    const added = question.patterns
      .map((pattern, i) => ({ pattern, path: question.paths?.[i] }))
      .filter(({ pattern }) => !same.patterns.includes(pattern));
    merged.set(key, {
      ...same,
      patterns: [...same.patterns, ...added.map(({ pattern }) => pattern)],
      ...(question.onceOnly && { onceOnly: true }),
      ...(same.paths && { paths: [...same.paths, ...added.flatMap(({ path }) => path ?? [])] }),
    });
  }
  return [...merged.values()];
}

/** Of a question that only restricts what is asked; the rest was decided elsewhere. */
function askedOf(question: Question, decisions: readonly PermissionDecision[]): Question {
  const asked = question.patterns.map((_, i) => decisions[i]?.action === PermissionAction.ASK);
  return {
    ...question,
    patterns: question.patterns.filter((_, i) => asked[i]),
    ...(question.paths && { paths: question.paths.filter((_, i) => asked[i]) }),
  };
}

/** The name of the root in `NAME/folder`. */
export function workspaceRoot(workspace: string): string {
  return workspace.split("/", 1)[0] ?? workspace;
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
function settledBefore(settled: PermissionSettled, principal: Principal, response: PermissionResponse): void {
  const { reply, replyId, message, permissionId } = response;
  const sameAnswer = outcomes[reply] === settled.outcome && message === settled.message;
  const sameId = replyId !== "" && replyId === settled.replyId;
  if (settled.by === principal.id && sameAnswer && (sameId || (replyId === "" && settled.replyId === ""))) return;
  if (sameId) {
    throw new RequestError(
      ErrorReason.REPLY_ID_REUSED,
      `reply_id ${replyId} was used for another answer to ${permissionId}; send a new one`,
      { permission_id: permissionId, reply_id: replyId },
    );
  }
  const answered = [PermissionOutcome.ONCE, PermissionOutcome.ALWAYS, PermissionOutcome.REJECT].some(
    (outcome) => outcome === settled.outcome,
  );
  const outcome = outcomeName(settled.outcome);
  throw answered
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

const outcomes: Partial<Record<PermissionReply, PermissionOutcome>> = {
  [PermissionReply.ONCE]: PermissionOutcome.ONCE,
  [PermissionReply.ALWAYS]: PermissionOutcome.ALWAYS,
  [PermissionReply.REJECT]: PermissionOutcome.REJECT,
};

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
