import type { Keys } from "./keys.ts";
import type { Link, StepKeys } from "./link.ts";
import { text } from "./reply.ts";

/** Where sessions are: what never changes about them, kept for those in use. */
export type Trees = ReturnType<typeof createTrees>;

/** Finds the tree of a session, and the sessions above it. */
export function createTrees({ link, keys }: { link: Link; keys: Keys }) {
  // In order of use, the latest last.
  const known = new Map<string, { root: string; parent: string }>();
  link.onLost(() => known.clear());

  function learn(sessionId: string, root: string, parent: string): void {
    known.delete(sessionId);
    known.set(sessionId, { root, parent });
    const oldest = known.size > sessionsKept ? known.keys().next().value : undefined;
    if (oldest !== undefined) known.delete(oldest);
  }

  async function parentOf(root: string, sessionId: string): Promise<string> {
    const found = known.get(sessionId);
    if (found?.root === root) return found.parent;
    const parent = await link.command("hget", keys.tree(root).session(sessionId), "parent");
    if (parent === null) return "";
    learn(sessionId, root, text(parent));
    return text(parent);
  }

  /** The session and those above it, up to the root; of a session that is not there, itself: the step will find that out. */
  async function lineage(root: string, sessionId: string): Promise<string[]> {
    const parent = await parentOf(root, sessionId);
    return parent === "" ? [sessionId] : [sessionId, ...(await lineage(root, parent))];
  }

  return {
    learn,
    forget: (sessionId: string) => void known.delete(sessionId),
    parentOf,
    lineage,

    /** Looks something up in the tree of a session. Undefined also if no session is known by that id. */
    async find<T>(sessionId: string, look: (root: string) => Promise<T | undefined>): Promise<T | undefined> {
      const remembered = known.get(sessionId)?.root;
      const found = remembered === undefined ? undefined : await look(remembered);
      if (found !== undefined) return found;
      // It may have been removed and made again, in another tree.
      const root = text(await link.command("get", keys.root(sessionId)));
      return root === "" || root === remembered ? undefined : look(root);
    },

    /** The keys that a step needs to append to these sessions' logs. */
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

const sessionsKept = 50_000;
