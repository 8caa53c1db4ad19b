import { setNewest } from "../../core/bounded-map.ts";
import { dayMs, recordRetentionMs } from "../retention.ts";
import type { Keys } from "./keys.ts";
import type { Link, StepKeys } from "./link.ts";
import { text } from "./reply.ts";

/** Cache of the roots and parents of sessions, which never change. */
export type Trees = ReturnType<typeof createTrees>;

/** Finds the tree and the ancestors of a session. */
export function createTrees({ link, keys }: { link: Link; keys: Keys }) {
  // In order of use, the latest last.
  const known = new Map<string, { root: string; parent: string }>();
  link.onLost(() => known.clear());

  function learn(sessionId: string, root: string, parent: string): void {
    setNewest(known, sessionId, { root, parent }, maxSessions);
  }

  async function parentOf(root: string, sessionId: string): Promise<string> {
    const found = known.get(sessionId);
    if (found?.root === root) return found.parent;
    const parent = await link.command("hget", keys.tree(root).session(sessionId), "parent");
    if (parent === null) return "";
    learn(sessionId, root, text(parent));
    return text(parent);
  }

  /** Returns the session and its ancestors, up to the root; for a missing session only itself, which the step then refuses. */
  async function lineage(root: string, sessionId: string): Promise<string[]> {
    const parent = await parentOf(root, sessionId);
    return parent === "" ? [sessionId] : [sessionId, ...(await lineage(root, parent))];
  }

  return {
    learn,
    forget: (sessionId: string) => void known.delete(sessionId),
    lineage,

    /** Points from the id of a session, ask or assignment to its tree, before that exists; returns the tree that it points to. */
    pointTo: async (id: string, root: string, seen = ""): Promise<string> =>
      text(await link.run("point_to", { pointer: keys.root(id) }, { seen, target: root, keepMs: pointerMs })),
    /** Makes the pointer from an id that exists now last. The sweep removes it with what it points to. */
    async keepPointer(id: string): Promise<void> {
      // Otherwise it lasts for a month.
      await link.command("persist", keys.root(id)).catch(() => null);
    },

    /** Runs a lookup in the tree of a session; undefined also if the session is unknown. */
    async find<T>(sessionId: string, look: (root: string) => Promise<T | undefined>): Promise<T | undefined> {
      const remembered = known.get(sessionId)?.root;
      const found = remembered === undefined ? undefined : await look(remembered);
      if (found !== undefined) return found;
      // It may have been removed and created again, in another tree.
      const root = text(await link.command("get", keys.root(sessionId)));
      return root === "" || root === remembered ? undefined : look(root);
    },

    /** Returns the keys that a step needs to append to the logs of these sessions. */
    logKeys(root: string, sessionIds: Iterable<string>): StepKeys {
      const tree = keys.tree(root);
      return Object.fromEntries(
        [...sessionIds].flatMap((id) => [
          [`session ${id}`, tree.session(id)],
          [`log ${id}`, tree.log(id)],
        ]),
      );
    },
  };
}

/** Time after which a pointer is removed whose target was never created. */
const pointerMs = recordRetentionMs + dayMs;
const maxSessions = 50_000;
