import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type Grant,
  GrantScope,
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { type PermissionRequest, PermissionRequestSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { RequestError } from "../core/request-error.ts";
import { display, warningsAbout } from "../policy/display.ts";
import type { ExpandedAsk, Layers } from "../policy/model.ts";
import type { Policy } from "../policy/policy.ts";
import { strictest } from "../policy/policy.ts";
import type { Subject } from "../policy/subject.ts";
import { createAnswers } from "./answers.ts";
import { revocationOf } from "./decisions.ts";
import { grantsFor, type Needed, offersFor } from "./grants.ts";
import type { AskRecord, PermissionStore } from "./ports.ts";
import { type CallChanges, createSettlements } from "./settlements.ts";

/** What holds for all that a call asks. */
export interface Verdict {
  /** The strictest of the decisions; ALLOW if nothing is asked. */
  action: PermissionAction;
  decisions: PermissionDecision[];
  /** The asks that an approver must answer: one per permission and working directory. */
  unapproved: UnapprovedAsk[];
  /** The rules version of the session tree, where grants were looked at. */
  rulesVersion?: number;
}

/** An ask that neither rules nor grants allow. */
export interface UnapprovedAsk extends ExpandedAsk {
  /** No grant can be saved for it: it asks each time. */
  onceOnly?: boolean;
}

/** What an ask is judged by, where it is not simply what holds for the call. */
export interface JudgedBy {
  /** In place of the subject's own. */
  layers?: Layers;
  /** Whether grants count; a call that relies on a wider one adopts it, a mere ask does not. Default adopt. */
  grants?: "adopt" | "look" | "none";
}

/** Judges calls, and keeps asks, answers and grants. */
export type Permissions = ReturnType<typeof createPermissions>;

export function createPermissions({
  store,
  policy,
  layersFor,
  changes,
  newId,
  now,
}: {
  store: PermissionStore;
  policy: Policy;
  layersFor(subject: Subject): Layers;
  changes: CallChanges;
  newId(prefix: "per" | "grt"): string;
  now(): number;
}) {
  /** Judges what a call asks, with grants where the layers say ask. */
  async function decide(
    asks: readonly ExpandedAsk[],
    subject: Subject,
    { layers = layersFor(subject), grants = "adopt" }: JudgedBy = {},
  ): Promise<Verdict> {
    const byRules = asks.map((ask) => ({ ask, decisions: policy.judge(ask, layers) }));
    const { session } = subject;
    const { judged, rulesVersion } =
      actionOf(byRules) === PermissionAction.ASK && grants !== "none" && session
        ? await rely(byRules, session, subject, grants === "adopt")
        : { judged: byRules };
    const asked = judged.filter(({ decisions }) => strictest(decisions) === PermissionAction.ASK);
    return {
      action: actionOf(judged),
      decisions: judged.flatMap(({ decisions }) => decisions),
      unapproved: merge(
        asked.map(({ ask, decisions }) => ({
          ...(ask.restricts ? onlyAsked(ask, decisions) : ask),
          ...(isAlwaysAsked(decisions) && { onceOnly: true }),
        })),
      ),
      ...(rulesVersion !== undefined && { rulesVersion }),
    };
  }

  /** What is judged, with grants where the rules ask; and the rules version at which those were looked at. */
  async function rely(
    byRules: readonly JudgedAsk[],
    { rootSessionId: root }: Session,
    subject: Subject,
    adopt: boolean,
  ): Promise<{ judged: JudgedAsk[]; rulesVersion: number }> {
    const { workspace, agent } = subject;
    // The version is read before a grant is adopted, so that a revocation in between shows at the start mark.
    const { grants, rulesVersion } = await store.grantsFor({ root, workspace, agent });
    for (let living = grants; ; ) {
      const { judged, used } = withGrants(byRules, living, subject);
      const dead: Grant[] = [];
      for (const grant of used) {
        if (adopt && grant.scope !== GrantScope.SESSION && !(await store.adoptGrant(root, grant.id))) dead.push(grant);
      }
      if (dead.length === 0) return { judged, rulesVersion };
      living = living.filter((grant) => !dead.includes(grant));
    }
  }

  /** Writes down one ask; `id` is empty where nothing is opened. */
  function request(
    ask: UnapprovedAsk,
    decisions: readonly PermissionDecision[],
    fields: MessageInitShape<typeof PermissionRequestSchema>,
    subject: Subject,
    id: string,
  ): PermissionRequest {
    const { permission, patterns, always = [] } = ask;
    const { agent, workspace } = subject;
    const binding = bindingOf(subject, ask);
    const about = { permission, patterns: askedOf(ask, decisions), wildcards: always, agent, workspace, binding };
    const offers = ask.onceOnly ? [] : offersFor(about);
    return create(PermissionRequestSchema, {
      ...fields,
      id,
      permission,
      patterns: [...patterns],
      metadata: ask.metadata ?? {},
      always: offers.slice(0, 1).map(({ text }) => text),
      ancestry: [...subject.ancestors.map((ancestor) => ancestor.id), ...(subject.session ? [subject.session.id] : [])],
      created: now(),
      offers,
      decisions: decisions.filter((decision) => isAbout(decision, ask)),
      binding,
      display: patterns.map(display),
      warnings: [...new Set(patterns.flatMap(warningsAbout))],
    });
  }

  return {
    decide,
    request,
    ...createAnswers({ store, settlements: createSettlements({ store, changes, newId, now }), now }),
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
    async revoke(by: string, grantId: string): Promise<Grant> {
      const found = await store.getGrant(grantId);
      const grant = found && (await store.revokeGrant(grantId, [revocationOf(found, by)]));
      if (!grant)
        throw new RequestError(ErrorReason.NO_SUCH_GRANT, `grant ${grantId} is not known`, { grant_id: grantId });
      return grant;
    },
  };
}

/** The patterns of an ask for which the rules ask; a grant for one that is allowed anyway would be one too many. */
function askedOf(ask: ExpandedAsk, decisions: readonly PermissionDecision[]): string[] {
  const asked = decisions.filter((decision) => decision.action === PermissionAction.ASK && isAbout(decision, ask));
  return ask.patterns.filter((pattern) => asked.some((decision) => decision.pattern === pattern));
}

function isAbout({ permission, pattern }: PermissionDecision, { patterns, ...ask }: ExpandedAsk): boolean {
  const asked = patterns.length === 0 ? pattern === "" : patterns.includes(pattern);
  return permission === ask.permission && asked;
}

/** What a grant for this ask is bound to: for a command also its working directory. */
function bindingOf(subject: Subject, ask: ExpandedAsk): string {
  return ask.cwd === undefined ? subject.binding : `${subject.binding}:${ask.cwd}`;
}

/** What grants would have to cover; undefined where nothing says what would be touched, which no grant covers. */
function neededFor(ask: ExpandedAsk, asked: readonly PermissionDecision[], subject: Subject): Needed | undefined {
  const patterns = asked.map(({ pattern }) => pattern);
  if (!patterns.every((pattern) => ask.patterns.includes(pattern))) return undefined;
  const { tool, agent } = subject;
  return { permission: ask.permission, patterns, tool, agent, binding: bindingOf(subject, ask) };
}

/** An ask with what holds for each of its patterns. */
export interface JudgedAsk {
  ask: ExpandedAsk;
  decisions: PermissionDecision[];
}

/** Allows each ask for which the rules ask and of which grants cover all that they ask for; nothing else changes. */
export function withGrants(
  byRules: readonly JudgedAsk[],
  grants: readonly Grant[],
  subject: Subject,
): { judged: JudgedAsk[]; used: Set<Grant> } {
  const used = new Set<Grant>();
  const judged = byRules.map(({ ask, decisions }) => {
    const asked = decisions.filter(({ action }) => action === PermissionAction.ASK);
    const isFinal = strictest(decisions) === PermissionAction.DENY || isAlwaysAsked(decisions);
    const needed = isFinal ? undefined : neededFor(ask, asked, subject);
    const by = needed && grantsFor(grants, needed);
    if (!by) return { ask, decisions };
    for (const grant of by) used.add(grant);
    return {
      ask,
      decisions: decisions.map((decision) => allowedBy(by[asked.indexOf(decision)], decision)),
    };
  });
  return { judged, used };
}

function allowedBy(grant: Grant | undefined, decision: PermissionDecision): PermissionDecision {
  if (!grant) return decision;
  const action = PermissionAction.ALLOW;
  const by = { layer: PermissionLayer.GRANT, grantId: grant.id, reasonCode: PermissionReason.GRANT };
  return { ...decision, action, ...by, reason: `grant ${grant.id}: ${grant.text}` };
}

/** What holds for all asks together; nothing asked is ALLOW. */
function actionOf(judged: readonly JudgedAsk[]): PermissionAction {
  if (judged.length === 0) return PermissionAction.ALLOW;
  return strictest(judged.map(({ decisions }) => ({ action: strictest(decisions) })));
}

/** What the engine itself asks, and what nobody knows the rules of, no grant answers. */
function isAlwaysAsked(decisions: readonly PermissionDecision[]): boolean {
  return decisions.some(
    ({ action, layer, reasonCode }) =>
      action === PermissionAction.ASK &&
      (layer === PermissionLayer.ENGINE || reasonCode === PermissionReason.BROKEN_POLICY),
  );
}

/** One ask for each kind (and working directory), with the patterns of all. */
function merge(asks: UnapprovedAsk[]): UnapprovedAsk[] {
  const merged = new Map<string, UnapprovedAsk>();
  for (const ask of asks) {
    const key = `${ask.permission}\n${ask.cwd ?? ""}`;
    const same = merged.get(key);
    if (!same) {
      merged.set(key, ask);
      continue;
    }
    const added = ask.patterns
      .map((pattern, i) => ({ pattern, path: ask.paths?.[i] }))
      .filter(({ pattern }) => !same.patterns.includes(pattern));
    merged.set(key, {
      ...same,
      always: [...(same.always ?? []), ...(ask.always ?? [])],
      patterns: [...same.patterns, ...added.map(({ pattern }) => pattern)],
      ...(ask.onceOnly && { onceOnly: true }),
      ...(same.paths && { paths: [...same.paths, ...added.flatMap(({ path }) => path ?? [])] }),
    });
  }
  return [...merged.values()];
}

/** Of an ask that only restricts what is asked; the rest was decided elsewhere. */
function onlyAsked(ask: ExpandedAsk, decisions: readonly PermissionDecision[]): ExpandedAsk {
  const asked = ask.patterns.map((_, i) => decisions[i]?.action === PermissionAction.ASK);
  return {
    ...ask,
    patterns: ask.patterns.filter((_, i) => asked[i]),
    ...(ask.paths && { paths: ask.paths.filter((_, i) => asked[i]) }),
  };
}
