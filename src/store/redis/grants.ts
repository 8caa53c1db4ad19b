import { type DecisionRecord, type Grant, GrantScope } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { GrantFilter, GrantStore } from "../../approval/ports.ts";
import { encodeEvent } from "./events.ts";
import { decodeGrant, type GrantPlace, type GrantSlots } from "./grant-slots.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { fields, number, pairs, replyList, text, texts } from "./reply.ts";
import type { RunStep } from "./steps.ts";
import type { Trees } from "./trees.ts";

/** State that the operations on grants need. */
export interface GrantContext {
  readonly link: Link;
  readonly keys: Keys;
  readonly trees: Trees;
  readonly slots: GrantSlots;
  readonly runStep: RunStep;
}

/** Reads the live grants that may serve a tree, and the tree's versions; see the port. */
export async function readServingGrants(
  { link, keys, slots }: GrantContext,
  tree: Parameters<GrantStore["grantsFor"]>[0],
): ReturnType<GrantStore["grantsFor"]> {
  const own = keys.tree(tree.root);
  // In this order: a grant that this tree has just saved is in its outbox, or by then in the workspace's slot.
  const [inTree, state, outbox] = await slots.readSlot(own, [own.tree, own.outbox]);
  const [inWorkspace] = await slots.readSlot(keys.workspace(tree.workspace));
  const inOutbox = pairs(outbox)
    .filter(([id]) => !inWorkspace.some((grant) => grant.id === id))
    .map(([, saved]) => decodeGrant(saved));
  const serves = ({ scope, agent }: Grant) => scope === GrantScope.PROJECT || agent === tree.agent;
  return {
    grants: [...inTree, ...[...inWorkspace, ...inOutbox].filter(serves)].filter((grant) => isLive(grant, link.now())),
    rulesVersion: fields(state)?.number("rules") ?? 0,
    asksVersion: fields(state)?.number("asks") ?? 0,
  };
}

/** adopt_grant: adds a tree to the users of a live grant. */
export async function runAdoptGrant({ link, slots }: GrantContext, root: string, id: string): Promise<boolean> {
  const found = await slots.find(id);
  if (found === undefined) return false;
  const { grant, place } = found;
  const values = { id, root, expires: grant.expires, inTree: isInTree(place) };
  const [result] = replyList(await link.run("adopt_grant", slots.slotOf(id, place), values));
  return text(result) === "adopted";
}

/** revoke_grant: revokes a grant. Invalidates the decisions of its users even if it is already dead. */
export async function runRevokeGrant(
  context: GrantContext,
  id: string,
  decisions: readonly DecisionRecord[] = [],
): Promise<Grant | undefined> {
  const { link, slots } = context;
  const found = await slots.find(id);
  if (found === undefined) return undefined;
  const [time, users] = replyList(
    await link.run("revoke_grant", slots.slotOf(id, found.place), { id, inTree: isInTree(found.place) }),
  );
  const grant = { ...found.grant, revoked: number(time) };
  const recorded = found.grant.revoked > 0 ? [] : decisions;
  const roots = new Set([found.place.root, ...texts(users)]);
  await Promise.all([...roots].map((root) => raiseRules(context, root, grant, recorded)));
  return grant;
}

/** Invalidates decisions in a tree that uses the grant, and notifies the tree that created it. */
async function raiseRules(
  { trees, runStep }: GrantContext,
  root: string,
  grant: Grant,
  decisions: readonly DecisionRecord[],
): Promise<void> {
  const isCreator = root === grant.sessionId;
  await runStep(
    "raise_rules",
    root,
    isCreator ? trees.logKeys(root, [root]) : {},
    { grant: grant.id, session: root },
    { revoked: isCreator ? encodeEvent(root, { case: "revoked", value: grant }) : undefined },
    isCreator ? decisions : [],
  );
}

/** Lists grants, newest first; see the port. */
export async function listStoredGrants({ link, keys, slots }: GrantContext, filter: GrantFilter): Promise<Grant[]> {
  const { tree, includeDead, before, limit } = filter;
  const isWanted = (grant: Grant) => includeDead || isLive(grant, link.now());
  const from = before === undefined ? undefined : await slots.listing.placeOf(before);
  if (tree !== undefined) {
    const [[inTree], [inWorkspace]] = await Promise.all([
      slots.readSlot(keys.tree(tree.root)),
      slots.readSlot(keys.workspace(tree.workspace)),
    ]);
    const placed = await Promise.all(
      [...inTree, ...inWorkspace].map(async (grant) => ({
        grant,
        place: (await slots.listing.placeOf(grant.id)) ?? 0,
      })),
    );
    return placed
      .filter(({ grant, place }) => isWanted(grant) && (from === undefined || place < from))
      .sort((one, other) => other.place - one.place)
      .map(({ grant }) => grant)
      .slice(0, limit);
  }
  const found: Grant[] = [];
  for await (const id of slots.listing.newest(from, Math.min(limit, 200))) {
    const grant = (await slots.find(id))?.grant;
    if (grant !== undefined && isWanted(grant)) found.push(grant);
    if (found.length >= limit) break;
  }
  return found;
}

const isInTree = ({ workspace }: GrantPlace) => workspace === undefined;
const isLive = ({ revoked, expires }: Grant, now: number) => revoked === 0 && (expires === 0 || expires > now);
