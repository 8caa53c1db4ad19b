import {
  type DecisionFacts,
  type Grant,
  GrantScope,
  PermissionAction,
  type PermissionDecision,
  type PolicyShadow,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { NeededApproval } from "../policy/approval-rules.ts";
import type { ExpandedAsk, Layers, Subject } from "../policy/model.ts";
import { strictest } from "../policy/opinion.ts";
import type { Policy } from "../policy/policy.ts";
import { isOnceOnly, type JudgedAsk, withGrants } from "./grants.ts";
import type { PermissionStore } from "./ports.ts";
import { type GroupsNow, isTooWeak, meetsNeed } from "./votes.ts";

/** The decisions on all asks of a call, and what they come to. */
export interface Verdict {
  /** The strictest of the decisions; ALLOW if there is no ask. */
  action: PermissionAction;
  /** The strictest of the decisions by rules alone. */
  byRules: PermissionAction;
  /** Returns what the decisions by rules rest on, for the audit. */
  facts?: () => DecisionFacts;
  /** Returns what the shadow rules come to, for the audit; absent if that is the same. */
  shadow?: (() => PolicyShadow) | undefined;
  decisions: PermissionDecision[];
  /** The asks that an approver must answer: one per permission and working directory. */
  unapproved: UnapprovedAsk[];
  /** The rules version of the session tree at which grants were read; absent if none were read. */
  rulesVersion?: number;
  /** The grants with a limit that it relies on. */
  limited?: readonly Grant[] | undefined;
}

/** An ask that neither rules nor grants allow. */
export interface UnapprovedAsk extends ExpandedAsk {
  /** No grant can be saved for it: it asks each time. */
  onceOnly?: boolean;
  /** Persons have to approve it: no hook does. */
  isForPersons?: boolean;
}

/** The part of a verdict that the audit records. */
export type Judged = Pick<Verdict, "decisions"> & Partial<Pick<Verdict, "facts" | "shadow">>;

/** Rules and grants by which asks are judged. */
export interface JudgedBy {
  layers: Layers;
  /** Use of grants: a call adopts the wider ones that it relies on, a preview only looks at them. */
  grants: "adopt" | "look" | "none";
  /** The call whose start counts. What is adopted without one relies on no grant with a limit. */
  call?: CallRef | undefined;
  /** Adds to asks the risks of the code that runs; read where it depends on risks who has to approve. */
  withCodeRisks?<A extends ExpandedAsk>(asks: readonly A[]): Promise<A[]>;
}

/** Dependencies of `judgeAsks`. */
interface JudgeParts {
  store: GrantSource;
  policy: Policy;
  /** Returns who has to approve an ask; absent or undefined: any approver, alone. */
  approvalOf?: (ask: ExpandedAsk, subject: Subject) => NeededApproval | undefined;
  /** Reports whether that depends on risks; absent: it does not. */
  dependsOnRisks?: () => boolean;
  groupsNow?: GroupsNow;
}

/** The grants that may answer. */
type GrantSource = Pick<PermissionStore, "grantsFor" | "adoptGrant">;

/** Judges the asks of a call: by rules, then by grants where the rules ask. */
export async function judgeAsks(
  {
    store,
    policy,
    approvalOf = () => undefined,
    dependsOnRisks = () => false,
    groupsNow = ({ groups }) => groups,
  }: JudgeParts,
  asks: readonly ExpandedAsk[],
  subject: Subject,
  { layers, grants, call, withCodeRisks = async (each) => [...each] }: JudgedBy,
): Promise<Verdict> {
  let byRules = asks.map((ask) => ({ ask, decisions: policy.judge(ask, layers) }));
  if (actionOf(byRules) === PermissionAction.ASK && dependsOnRisks()) {
    const withRisks = await withCodeRisks(asks);
    byRules = byRules.map(({ ask, decisions }, i) => ({ ask: withRisks[i] ?? ask, decisions }));
  }
  /** A grant does not stand for persons who did not save it. */
  const counts = (grant: Grant, ask: ExpandedAsk) => {
    const needed = approvalOf(ask, subject);
    if (needed === undefined) return true;
    const voters = grant.voters.map((person) => ({ person }));
    const { need, always, times = Number.POSITIVE_INFINITY } = needed;
    if ((grant.times || Number.POSITIVE_INFINITY) > times) return false;
    return always && !isTooWeak({ need }, grant.method) && meetsNeed(need, voters, groupsNow);
  };
  const { session } = subject;
  const { judged, rulesVersion, limited } =
    actionOf(byRules) === PermissionAction.ASK && grants !== "none" && session
      ? await judgeByGrants(store, { byRules, counts }, session, subject, { adopt: grants === "adopt", call })
      : { judged: byRules };
  const unapproved = judged.filter(({ decisions }) => strictest(decisions) === PermissionAction.ASK);
  return {
    ...{ action: actionOf(judged), byRules: actionOf(byRules) },
    // Another ask decides on what rules do not restrict.
    decisions: judged.flatMap(({ ask, decisions }) =>
      ask.restricts
        ? decisions.filter(({ action, grantId }) => action !== PermissionAction.ALLOW || grantId)
        : decisions,
    ),
    unapproved: mergeAsks(
      unapproved.map(({ ask, decisions }) => ({
        ...(ask.restricts ? onlyAsking(ask, decisions) : ask),
        ...(isOnceOnly({ ask, decisions }, subject) && { onceOnly: true }),
      })),
    ).map((ask) => (approvalOf(ask, subject) ? { ...ask, isForPersons: true } : ask)),
    ...(rulesVersion !== undefined && { rulesVersion, limited }),
  };
}

/** Applies the living grants, and returns the rules version at which they were read. Repeats without the grants that adoption finds dead. */
async function judgeByGrants(
  store: GrantSource,
  { byRules, counts }: { byRules: readonly JudgedAsk[]; counts(grant: Grant, ask: ExpandedAsk): boolean },
  { rootSessionId: root }: Session,
  subject: Subject,
  { adopt, call }: { adopt: boolean; call: CallRef | undefined },
): Promise<{ judged: JudgedAsk[]; rulesVersion: number; limited: Grant[] }> {
  const { workspace, agent } = subject;
  // The version is read before a grant is adopted, so that the start mark detects a revocation in between.
  const { grants, rulesVersion } = await store.grantsFor({ root, workspace, agent, call });
  // One without a limit goes first, and saves a use.
  const [limited, free] = [grants.filter(({ times }) => times > 0), grants.filter(({ times }) => times === 0)];
  for (let living = adopt && !call ? free : [...free, ...limited]; ; ) {
    const { judged, used } = withGrants(byRules, living, subject, counts);
    const dead: Grant[] = [];
    for (const grant of used) {
      if (adopt && grant.scope !== GrantScope.SESSION && !(await store.adoptGrant(root, grant.id))) dead.push(grant);
    }
    if (dead.length === 0) return { judged, rulesVersion, limited: limited.filter((grant) => used.has(grant)) };
    living = living.filter((grant) => !dead.includes(grant));
  }
}

/** The strictest action over all asks; ALLOW if there is none. */
function actionOf(judged: readonly JudgedAsk[]): PermissionAction {
  if (judged.length === 0) return PermissionAction.ALLOW;
  return strictest(judged.map(({ decisions }) => ({ action: strictest(decisions) })));
}

/** Merges asks of the same permission and working directory into one with the patterns of all. */
function mergeAsks(asks: readonly UnapprovedAsk[]): UnapprovedAsk[] {
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
      ...(ask.readings && { readings: new Map([...(same.readings ?? []), ...ask.readings]) }),
      risks: [...(same.risks ?? []), ...(ask.risks ?? [])],
      deletes: [...(same.deletes ?? []), ...(ask.deletes ?? [])],
      ...(same.paths && { paths: [...same.paths, ...added.flatMap(({ path }) => path ?? [])] }),
    });
  }
  return [...merged.values()];
}

/** Reduces an ask that only restricts to its asking patterns; another ask decided the rest. */
function onlyAsking(ask: ExpandedAsk, decisions: readonly PermissionDecision[]): ExpandedAsk {
  const isAsking = ask.patterns.map((_, i) => decisions[i]?.action === PermissionAction.ASK);
  return {
    ...ask,
    patterns: ask.patterns.filter((_, i) => isAsking[i]),
    ...(ask.paths && { paths: ask.paths.filter((_, i) => isAsking[i]) }),
  };
}
