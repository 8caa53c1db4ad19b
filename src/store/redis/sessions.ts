import { type Session, SessionSchema } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { CallRecordReader, SessionStore } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { noSuchSession } from "../../core/request-error.ts";
import { sessionClosed } from "../refusals.ts";
import { decodeSealed, encodeSealed } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { createListing, type Listing, withPlaces } from "./listing.ts";
import { type Fields, fields, number, replyList, text, texts } from "./reply.ts";
import type { RunStep } from "./steps.ts";
import type { Trees } from "./trees.ts";

/** The sessions of a store. */
export type RedisSessions = ReturnType<typeof createRedisSessions>;

/** Creates, reads, lists and closes sessions. */
export function createRedisSessions(options: { link: Link; keys: Keys; trees: Trees; runStep: RunStep }) {
  const { link, keys, trees, runStep } = options;
  /** All sessions, and the roots of all trees. */
  const listing = createListing({ link, keys, name: "sessions" });
  const rootListing = createListing({ link, keys, name: "trees" });

  /** Reads a session by its id. */
  const getSession = (id: string): Promise<Session | undefined> => trees.find(id, (root) => loadSession(root, id));

  async function loadSession(root: string, id: string): Promise<Session | undefined> {
    return decode(id, fields((await link.hashes(keys.tree(root).session(id)))[0]));
  }

  /** Returns the root of the tree that the session belongs to. */
  async function rootFor({ id, parentSessionId: parent }: Session): Promise<string> {
    if (parent === "") return id;
    const above = await getSession(parent);
    if (above === undefined) throw noSuchSession(parent);
    // Before anything is listed. The step checks it again.
    if (above.closed > 0 && (await getSession(id)) === undefined) throw sessionClosed(parent);
    return above.rootSessionId;
  }

  /** Writes the pointer to a session's tree, before the session, so that every session has one; returns its target. */
  async function pointTo(id: string, root: string): Promise<string> {
    for (let seen = ""; ; ) {
      const target = await trees.pointTo(id, root, seen);
      // A pointer to a session that was never created is replaced.
      if (target === root || (await loadSession(target, id)) !== undefined) return target;
      seen = target;
    }
  }

  async function addToTree(session: Session, root: string): Promise<void> {
    const { id, parentSessionId: parent, owner } = session;
    const at = await listing.enter(id);
    await Promise.all([
      link.write("zadd", keys.owned(owner), "NX", at, id),
      ...(root === id ? [rootListing.enter(root)] : []),
    ]);
    const tree = keys.tree(root);
    const names = { sessions: tree.sessions, [`session ${id}`]: tree.session(id) };
    const result = text(
      await runStep(
        "create_session",
        root,
        { ...names, ...(parent !== "" && { parent: tree.session(parent) }) },
        { session: id, parent, at },
        { body: encodeSealed(SessionSchema, session) },
      ),
    );
    if (result === "no parent") throw noSuchSession(parent);
    if (result === "parent closed") throw sessionClosed(parent);
    // An existing session may have another parent.
    if (result === "created") trees.learn(id, root, parent);
  }

  const port: SessionStore & Pick<CallRecordReader, "repeatsOf"> = {
    getSession,

    /** create_session: adds a session to its tree, or returns the existing one with that id. */
    async createSession(session) {
      const { id } = session;
      const root = await rootFor(session);
      const target = await pointTo(id, root);
      if (target === root) await addToTree({ ...session, rootSessionId: root }, root);
      const created = await getSession(id);
      if (created === undefined) throw noSuchSession(id);
      await trees.keepPointer(id);
      return created;
    },

    /** Lists sessions, newest first; see the port. */
    async listSessions(filter) {
      const { owner, before, limit } = filter;
      const from = before === undefined ? undefined : await listing.placeOf(before);
      const found: Session[] = [];
      for await (const batch of inBatches(
        listSessionIds({ link, keys, listing }, filter, from),
        Math.min(limit, maxSessionPage),
      )) {
        const loaded = await Promise.all(batch.map((id) => getSession(id)));
        for (const session of loaded) {
          if (session !== undefined && (owner ?? session.owner) === session.owner) found.push(session);
        }
        if (found.length >= limit) break;
      }
      return found.slice(0, limit);
    },

    /** close_session: returns the open calls of the session and its descendants. */
    async closeSession(id) {
      const root = (await getSession(id))?.rootSessionId;
      if (root === undefined) throw noSuchSession(id);
      const tree = keys.tree(root);
      for (;;) {
        const all = texts(await link.command("zrange", tree.sessions, 0, -1));
        const lineages = await Promise.all(all.map((each) => trees.lineage(root, each)));
        const closing = all.filter((_, index) => lineages[index]?.includes(id));
        const names = closing.flatMap((each) => [
          [`session ${each}`, tree.session(each)],
          [`open ${each}`, tree.open(each)],
        ]);
        const open = await runStep(
          "close_session",
          root,
          { sessions: tree.sessions, ...Object.fromEntries(names) },
          { closing, count: all.length },
        );
        if (text(open) === "retry") continue;
        return callRefs(root, texts(open));
      }
    },

    /** Predicts `repeats` of the session's next call, if it is this request; see the port. */
    async repeatsOf(sessionId, requestDigest) {
      const found = await trees.find(sessionId, async (root) => {
        const key = keys.tree(root).session(sessionId);
        const [latest, repeats] = replyList(await link.command("hmget", key, "latest", "repeats"));
        return latest === null ? undefined : text(latest) === requestDigest ? number(repeats) + 1 : 0;
      });
      return found ?? 0;
    },
  };
  return { port, listing, rootListing };
}

function decode(id: string, found: Fields | undefined): Session | undefined {
  if (found === undefined) return undefined;
  const session = decodeSealed(SessionSchema, found.bytes("body"), `session ${id}`);
  return { ...session, closed: found.number("closed"), lastSeq: BigInt(found.text("seq")) };
}

/** Pairs session ids with call ids, which alternate. */
function callRefs(root: string, open: readonly string[]): CallRef[] {
  return open.flatMap((sessionId, index) =>
    index % 2 === 0 ? [{ root, sessionId, callId: open[index + 1] ?? "" }] : [],
  );
}

async function* inBatches<T>(all: AsyncIterable<T>, size: number): AsyncGenerator<T[]> {
  let batch: T[] = [];
  for await (const each of all) {
    batch.push(each);
    if (batch.length < size) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}

/** Lists the ids of sessions, newest first, of one tree, of one owner, or of all. */
function listSessionIds(
  { link, keys, listing }: { link: Link; keys: Keys; listing: Listing },
  { owner, root, limit }: Parameters<SessionStore["listSessions"]>[0],
  before: number | undefined,
): AsyncGenerator<string> {
  if (root !== undefined) return newestInTree(link, keys.tree(root).sessions, before);
  if (owner !== undefined) return newestOfOwner(link, keys.owned(owner), before);
  return listing.newest(before, Math.min(limit, maxSessionPage));
}

async function* newestInTree(link: Link, key: string, before: number | undefined): AsyncGenerator<string> {
  const max = before === undefined ? "+inf" : `(${before}`;
  yield* texts(await link.command("zrevrangebyscore", key, max, "-inf"));
}

async function* newestOfOwner(link: Link, key: string, before: number | undefined): AsyncGenerator<string> {
  for (let end = before; ; ) {
    const max = end === undefined ? "+inf" : `(${end}`;
    const found = await link.command("zrevrangebyscore", key, max, "-inf", "WITHSCORES", "LIMIT", 0, maxSessionPage);
    const page = withPlaces(texts(found));
    for (const { id } of page) yield id;
    if (page.length < maxSessionPage) return;
    end = page.at(-1)?.place;
  }
}

/** Sessions that are read at a time. */
const maxSessionPage = 200;
