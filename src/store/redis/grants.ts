import { type DecisionRecord, type Grant, GrantScope } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { GrantStore } from "../../approval/ports.ts";
import { isLive, useOf } from "../grant-uses.ts";
import { encodeEvent } from "./events.ts";
import { decodeGrant, type GrantPlace, type GrantSlots } from "./grant-slots.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import type { RedisAudit } from "./log.ts";
import { fields, number, pairs, replyList, text, texts } from "./reply.ts";
import type { RunStep } from "./steps.ts";
import type { Trees } from "./trees.ts";

/** Reads grants, and changes them with the trees that use them. */
export function createRedisGrants(options: {
  link: Link;
  keys: Keys;
  trees: Trees;
  slots: GrantSlots;
  runStep: RunStep;
  audit: Pick<RedisAudit, "listRemoved">;
}): GrantStore {
  const { link, keys, trees, slots, runStep, audit } = options;

  /** Invalidates the decisions of the tree that created a grant, and of its users. */
  async function raiseUsers(creator: string, users: readonly string[], change: GrantChange) {
    const roots = new Set([creator, ...users]);
    await Promise.all([...roots].map((root) => raiseRules(root, change)));
  }

  /** Invalidates decisions in a tree that uses the grant, and notifies the tree that created it; if that is gone, lists its audit. */
  async function raiseRules(root: string, { grant, emitted, decisions }: GrantChange): Promise<void> {
    const isCreator = root === grant.sessionId;
    const result = await runStep(
      "raise_rules",
      root,
      isCreator ? trees.logKeys(root, [root]) : {},
      { mark: emitted.mark, session: root },
      { event: isCreator ? emitted.event : undefined },
      isCreator ? decisions : [],
    );
    if (text(result) === "gone" && isCreator && decisions.length > 0) await audit.listRemoved(root);
  }

  return {
    /** Reads the live grants that may serve a tree, and the tree's versions; see the port. */
    async grantsFor(tree) {
      const own = keys.tree(tree.root);
      // In this order: a grant that this tree has just saved is in its outbox, or by then in the workspace's slot.
      const [inTree, state, outbox] = await slots.readSlot(own, [own.tree, own.outbox], tree.call);
      const [inWorkspace] = await slots.readSlot(keys.workspace(tree.workspace), [], tree.call);
      const inOutbox = pairs(outbox)
        .filter(([id]) => !inWorkspace.some((grant) => grant.id === id))
        .map(([, saved]) => slots.withSuspension(decodeGrant(saved)));
      const serves = ({ scope, agent }: Grant) => scope === GrantScope.PROJECT || agent === tree.agent;
      return {
        grants: [...inTree, ...[...inWorkspace, ...inOutbox].filter(serves)].filter(
          (grant) => grant.suspended === 0 && isLive(grant, link.now()),
        ),
        rulesVersion: fields(state)?.number("rules") ?? 0,
        asksVersion: fields(state)?.number("asks") ?? 0,
      };
    },

    getGrant: async (id) => (await slots.find(id))?.grant,

    /** adopt_grant: adds a tree to the users of a live grant. */
    async adoptGrant(root, id) {
      const found = await slots.find(id);
      if (found === undefined || found.grant.suspended > 0) return false;
      const { grant, place } = found;
      const values = { id, root, expires: grant.expires, inTree: isInTree(place) };
      const [result] = replyList(await link.run("adopt_grant", slots.slotOf(id, place), values));
      return text(result) === "adopted";
    },

    /** take_grant: takes a use of a grant with a limit for a call, which has one at most. */
    async takeGrant(call, id) {
      const found = await slots.find(id);
      if (found === undefined) return false;
      const { grants, uses, used } = slots.slotOf(id, found.place);
      const values = { id, times: found.grant.times, use: useOf(call) };
      const [result] = replyList(await link.run("take_grant", { grants, uses, used }, values));
      return text(result) === "taken";
    },

    /** revoke_grant: revokes a grant. Invalidates the decisions of its users even if it is already dead. */
    async revokeGrant(id, decisions = []) {
      const found = await slots.find(id);
      if (found === undefined) return undefined;
      const [time, users] = replyList(
        await link.run("revoke_grant", slots.slotOf(id, found.place), { id, inTree: isInTree(found.place) }),
      );
      const grant = { ...found.grant, revoked: number(time) };
      const recorded = found.grant.revoked > 0 ? [] : decisions;
      const emitted = { mark: id, event: encodeEvent(grant.sessionId, { case: "revoked", value: grant }) };
      await raiseUsers(found.place.root, texts(users), { grant, emitted, decisions: recorded });
      return grant;
    },

    /** confirm_grant: lets a suspended grant serve again, until the next restore; see the port. */
    async confirmGrant(id, decisions = []) {
      const found = await slots.find(id);
      if (found === undefined || found.grant.suspended === 0) return found?.grant;
      const { grants, confirmed, users } = slots.slotOf(id, found.place);
      const [time, roots] = replyList(await link.run("confirm_grant", { grants, confirmed, users }, { id }));
      const grant = { ...found.grant, suspended: 0 };
      const event = encodeEvent(grant.sessionId, { case: "granted", value: grant });
      const emitted = { mark: `${id} confirmed ${number(time)}`, event };
      await raiseUsers(found.place.root, texts(roots), { grant, emitted, decisions });
      return grant;
    },

    /** Lists grants, newest first; see the port. */
    async listGrants(filter) {
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
    },
  };
}

/** A grant that changed, the event that its creator's tree emits once, by a mark, and the records of the change. */
interface GrantChange {
  grant: Grant;
  emitted: { mark: string; event: Uint8Array };
  decisions: readonly DecisionRecord[];
}

const isInTree = ({ workspace }: GrantPlace) => workspace === undefined;
