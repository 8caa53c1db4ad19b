import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { type Session, SessionSchema } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { CallStore } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { noSuchSession } from "../../core/request-error.ts";
import { sessionClosed } from "../refusals.ts";
import { day, recordsKept } from "./kept.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { createListing, withPlaces } from "./listing.ts";
import { type Fields, fields, number, replyList, text, texts } from "./reply.ts";
import type { RunStep } from "./steps.ts";
import type { Trees } from "./trees.ts";

/** The sessions of a store. */
export type RedisSessions = ReturnType<typeof createRedisSessions>;

/** Makes, finds, lists and closes sessions. */
export function createRedisSessions(options: { link: Link; keys: Keys; trees: Trees; runStep: RunStep }) {
  const { link, keys, trees, runStep } = options;
  const listing = createListing({ link, keys, name: "sessions" });
  const rootListing = createListing({ link, keys, name: "trees" });

  const load = async (root: string, id: string): Promise<Session | undefined> =>
    decode(fields((await link.hashes(keys.tree(root).session(id)))[0]));

  const get = (id: string) => trees.find(id, (root) => load(root, id));

  /** The root of the tree that the session is to be in. */
  async function rootFor({ id, parentSessionId: parent }: Session): Promise<string> {
    if (parent === "") return id;
    const above = await get(parent);
    if (above === undefined) throw noSuchSession(parent);
    return above.rootSessionId;
  }

  /** Where a session is comes before the session, so that no session is without; returns the tree that it leads to. */
  async function pointTo(id: string, root: string): Promise<string> {
    const pointer = keys.root(id);
    for (let seen = ""; ; ) {
      const target = text(await link.run("point_to", { pointer }, { seen, target: root }));
      // A pointer to a session that was never made is taken over.
      if (target === root || (await load(target, id)) !== undefined) return target;
      seen = target;
    }
  }

  async function create(session: Session): Promise<Session> {
    const { id, parentSessionId: parent, owner } = session;
    const root = await rootFor(session);
    const target = await pointTo(id, root);
    if (target === root) await make({ ...session, rootSessionId: root }, root, parent, owner);
    const made = await get(id);
    if (made === undefined) throw noSuchSession(id);
    return made;
  }

  async function make(session: Session, root: string, parent: string, owner: string): Promise<void> {
    const { id } = session;
    const at = await listing.enter(id);
    await Promise.all([
      link
        .command("zadd", keys.owned(owner), "NX", at, id)
        .then(() => link.command("pexpire", keys.owned(owner), recordsKept + day)),
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
        { body: toBinary(SessionSchema, session) },
      ),
    );
    if (result === "no parent") throw noSuchSession(parent);
    if (result === "parent closed") throw sessionClosed(parent);
    // Of one that was there already, the parent may be another.
    if (result === "created") trees.learn(id, root, parent);
  }

  async function* newestOf(owner: string, before: number | undefined): AsyncGenerator<string> {
    for (let end = before; ; ) {
      const max = end === undefined ? "+inf" : `(${end}`;
      const page = withPlaces(
        texts(
          await link.command("zrevrangebyscore", keys.owned(owner), max, "-inf", "WITHSCORES", "LIMIT", 0, pageSize),
        ),
      );
      for (const { id } of page) yield id;
      if (page.length < pageSize) return;
      end = page.at(-1)?.place;
    }
  }

  async function* newestInTree(root: string, before: number | undefined): AsyncGenerator<string> {
    const max = before === undefined ? "+inf" : `(${before}`;
    yield* texts(await link.command("zrevrangebyscore", keys.tree(root).sessions, max, "-inf"));
  }

  return {
    listing,
    rootListing,
    create,
    get,

    async list({ owner, root, before, limit }: Parameters<CallStore["listSessions"]>[0]): Promise<Session[]> {
      const from = before === undefined ? undefined : await listing.placeOf(before);
      const ids =
        root !== undefined
          ? newestInTree(root, from)
          : owner !== undefined
            ? newestOf(owner, from)
            : listing.newest(from, Math.min(limit, pageSize));
      const found: Session[] = [];
      for await (const batch of inBatches(ids, Math.min(limit, pageSize))) {
        const loaded = await Promise.all(batch.map(get));
        found.push(
          ...(loaded.filter(
            (session) => session !== undefined && (owner ?? session.owner) === session.owner,
          ) as Session[]),
        );
        if (found.length >= limit) break;
      }
      return found.slice(0, limit);
    },

    /** close_session: returns the open calls of the session and its descendants. */
    async close(id: string): Promise<CallRef[]> {
      const root = (await get(id))?.rootSessionId;
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

    async repeatsOf(sessionId: string, requestDigest: string): Promise<number> {
      const found = await trees.find(sessionId, async (root) => {
        const [latest, repeats] = replyList(
          await link.command("hmget", keys.tree(root).session(sessionId), "latest", "repeats"),
        );
        return latest === null ? undefined : text(latest) === requestDigest ? number(repeats) + 1 : 0;
      });
      return found ?? 0;
    },

    getRead: async (root: string, path: string) =>
      text(await link.command("hget", keys.tree(root).reads, path)) || undefined,
    recordRead: async (root: string, path: string, sha256: string) =>
      void (await link.run("keep_field", { hash: keys.tree(root).reads }, { field: path, value: sha256 })),

    getState: async ({ root, sessionId }: Pick<CallRef, "root" | "sessionId">, name: string) =>
      text(await link.command("hget", keys.tree(root).state(sessionId), name)) || undefined,
    setState: async ({ root, sessionId }: Pick<CallRef, "root" | "sessionId">, name: string, value: string) =>
      void (await link.run("keep_field", { hash: keys.tree(root).state(sessionId) }, { field: name, value })),
  };
}

const pageSize = 200;

function decode(found: Fields | undefined): Session | undefined {
  if (found === undefined) return undefined;
  const session = fromBinary(SessionSchema, found.bytes("body"));
  return { ...session, closed: found.number("closed"), lastSeq: BigInt(found.text("seq")) };
}

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
