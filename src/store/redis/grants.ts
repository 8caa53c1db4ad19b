import { create, fromBinary } from "@bufbuild/protobuf";
import {
  type DecisionRecord,
  type Grant,
  GrantSchema,
  GrantScope,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionStore } from "../../approval/ports.ts";
import { encodeEvent } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { createListing } from "./listing.ts";
import { bytes, fields, number, pairs, type Reply, replyList, text, texts } from "./reply.ts";
import type { RunStep } from "./steps.ts";
import type { Trees } from "./trees.ts";

/** The grants of a store. */
export type RedisGrants = ReturnType<typeof createRedisGrants>;

/**
 * Finds and revokes what people approved with "always". Those of a session tree are in its slot, wider ones in that of their
 * workspace. The place of a grant is written before the grant, so that none is without.
 */
export function createRedisGrants(options: { link: Link; keys: Keys; trees: Trees; runStep: RunStep }) {
  const { link, keys, trees, runStep } = options;
  const listing = createListing({ link, keys, name: "grants" });

  function slotOf(id: string, { root, workspace }: Place) {
    if (workspace !== undefined) {
      const { grants, revoked, used, users } = keys.workspace(workspace);
      return { grants, revoked, used, users: users(id) };
    }
    const { grants, revoked, used, users } = keys.tree(root);
    return { grants, revoked, used, users };
  }

  async function placeOf(id: string): Promise<Place | undefined> {
    const place = text(await link.command("get", keys.grantPlace(id)));
    return place === "" ? undefined : JSON.parse(place);
  }

  async function load(id: string, place: Place): Promise<Grant | undefined> {
    const slot = slotOf(id, place);
    const [saved, revoked, used] = await Promise.all([
      link.command("hget", slot.grants, id),
      link.command("hget", slot.revoked, id),
      link.command("hget", slot.used, id),
    ]);
    const found = bytes(saved);
    return found && { ...fromBinary(GrantSchema, found), revoked: number(revoked), lastUsed: number(used) };
  }

  /** The grant and its place; one that waits in its tree's outbox is brought there first. */
  async function find(id: string): Promise<{ grant: Grant; place: Place } | undefined> {
    const place = await placeOf(id);
    if (place === undefined) return undefined;
    const saved = await load(id, place);
    if (saved === undefined && place.workspace !== undefined) await drainOutbox(place.root);
    const grant = saved ?? (place.workspace === undefined ? undefined : await load(id, place));
    return grant && { grant, place };
  }

  /** Brings a tree's wider grants to their workspaces' slots. */
  async function drainOutbox(root: string): Promise<void> {
    const { outbox } = keys.tree(root);
    for (const [id, saved] of pairs((await link.hashes(outbox))[0])) {
      const { workspace } = fromBinary(GrantSchema, saved);
      const { grants, users } = slotOf(id, { root, workspace });
      await link.run("save_grant", { grants, users }, { id, root }, { grant: saved });
      await link.command("hdel", outbox, id);
    }
  }

  async function readAll(
    { grants, revoked, used }: { grants: string; revoked: string; used: string },
    more: string[] = [],
  ): Promise<[Grant[], ...Reply[]]> {
    const [saved, dead, uses, ...others] = await link.hashes(grants, revoked, used, ...more);
    const [ends, last] = [fields(dead), fields(uses)];
    const decode = ([id, found]: [string, Buffer]) =>
      create(GrantSchema, {
        ...fromBinary(GrantSchema, found),
        revoked: ends?.number(id) ?? 0,
        lastUsed: last?.number(id) ?? 0,
      });
    return [pairs(saved).map(decode), ...others];
  }

  const isLiving = ({ revoked, expires }: Grant) => revoked === 0 && (expires === 0 || expires > link.now());

  /** Makes a tree that uses a grant judge again; the one it came from is told. */
  async function raiseRules(root: string, grant: Grant, decisions: readonly DecisionRecord[]): Promise<void> {
    const told = root === grant.sessionId;
    await runStep(
      "raise_rules",
      root,
      told ? trees.logKeys(root, [root]) : {},
      { grant: grant.id, session: root },
      { revoked: told ? encodeEvent(root, { case: "revoked", value: grant }) : undefined },
      told ? decisions : [],
    );
  }

  return {
    listing,
    drainOutbox,
    placeOf,
    load,
    slotOf,

    /** Writes where a grant will be, and that there may be one. */
    async announce(root: string, { id, scope, workspace }: Grant): Promise<void> {
      const place: Place = scope === GrantScope.SESSION ? { root } : { root, workspace };
      await Promise.all([
        link.run("point_to", { pointer: keys.grantPlace(id) }, { seen: "", target: JSON.stringify(place) }),
        listing.enter(id),
      ]);
    },

    get: async (id: string) => (await find(id))?.grant,

    async serving(tree: { root: string; workspace: string; agent: string }) {
      const own = keys.tree(tree.root);
      const wide = keys.workspace(tree.workspace);
      // One after the other: what this tree has just saved is in its outbox, or by then in the workspace's slot.
      const [inTree, state, outbox] = await readAll(own, [own.tree, own.outbox]);
      const [inWorkspace] = await readAll(wide);
      const onTheWay = pairs(outbox)
        .filter(([id]) => !inWorkspace.some((grant) => grant.id === id))
        .map(([, saved]) => fromBinary(GrantSchema, saved));
      const serves = ({ scope, agent }: Grant) => scope === GrantScope.PROJECT || agent === tree.agent;
      return {
        grants: [...inTree, ...[...inWorkspace, ...onTheWay].filter(serves)].filter(isLiving),
        rulesVersion: fields(state)?.number("rules") ?? 0,
        asksVersion: fields(state)?.number("asks") ?? 0,
      };
    },

    async adopt(root: string, id: string): Promise<boolean> {
      const found = await find(id);
      if (found === undefined) return false;
      const { grant, place } = found;
      const { expires } = grant;
      return (
        text(
          replyList(
            await link.run("adopt_grant", slotOf(id, place), { id, root, expires, inTree: isInTree(place) }),
          )[0],
        ) === "adopted"
      );
    },

    /** Also for a grant that is dead already: who relied on it judges again. */
    async revoke(id: string, decisions: readonly DecisionRecord[] = []): Promise<Grant | undefined> {
      const found = await find(id);
      if (found === undefined) return undefined;
      const [time, users] = replyList(
        await link.run("revoke_grant", slotOf(id, found.place), { id, inTree: isInTree(found.place) }),
      );
      const grant = { ...found.grant, revoked: number(time) };
      const told = found.grant.revoked > 0 ? [] : decisions;
      await Promise.all([...new Set([found.place.root, ...texts(users)])].map((root) => raiseRules(root, grant, told)));
      return grant;
    },

    async list({ tree, includeDead, before, limit }: Parameters<PermissionStore["listGrants"]>[0]): Promise<Grant[]> {
      const wanted = (grant: Grant | undefined) => grant !== undefined && (includeDead || isLiving(grant));
      const from = before === undefined ? undefined : await listing.placeOf(before);
      if (tree !== undefined) {
        const own = keys.tree(tree.root);
        const wide = keys.workspace(tree.workspace);
        const [[inTree], [inWorkspace]] = await Promise.all([readAll(own), readAll(wide)]);
        const placed = await Promise.all(
          [...inTree, ...inWorkspace].map(async (grant) => ({ grant, place: (await listing.placeOf(grant.id)) ?? 0 })),
        );
        return placed
          .filter(({ grant, place }) => wanted(grant) && (from === undefined || place < from))
          .sort((one, other) => other.place - one.place)
          .map(({ grant }) => grant)
          .slice(0, limit);
      }
      const found: Grant[] = [];
      for await (const id of listing.newest(from, Math.min(limit, 200))) {
        const grant = (await find(id))?.grant;
        if (grant !== undefined && wanted(grant)) found.push(grant);
        if (found.length >= limit) break;
      }
      return found;
    },
  };
}

const isInTree = ({ workspace }: Place) => workspace === undefined;

/** Where a grant is: in the tree it was given in, or (a wider one) in the slot of a workspace. */
interface Place {
  root: string;
  workspace?: string;
}
