import { create, toBinary } from "@bufbuild/protobuf";
import { PermissionOutcome, PermissionSettledSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord, OpenFilter } from "../../approval/ports.ts";
import type { CallRecord, CallWithAsks } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { type NoteDamage, unlessDamaged } from "../parts.ts";
import { createRecentRequests } from "../recent-requests.ts";
import type { Damage } from "../refusals.ts";
import { callName, type RedisCallRecords } from "./call-records.ts";
import { decodeAsked, decodeSettled } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { withPlaces } from "./listing.ts";
import type { Live } from "./live.ts";
import { bytes, fields, inPortions, number, type Reply, replyList, text, texts } from "./reply.ts";
import type { Trees } from "./trees.ts";

/** The asks of a store. */
export type RedisAsks = ReturnType<typeof createRedisAsks>;

/** Creates the reads of asks, each with its call. */
export function createRedisAsks(options: {
  link: Link;
  keys: Keys;
  trees: Trees;
  live: Live;
  records: RedisCallRecords;
  damage: Damage;
}) {
  const { link, keys, trees, live, records, damage } = options;
  const recent = createRecentRequests(decodeAsked);

  /** Reads the asks with these ids that exist, in this order, as one snapshot; without damaged ones, if these are noted. */
  async function load(root: string, askIds: readonly string[], note?: NoteDamage): Promise<AskRecord[]> {
    if (askIds.length === 0) return [];
    const { asked, settled, callOf, call } = keys.tree(root);
    const found = replyList(await link.read("read_asks", [asked, settled, callOf], call(""), ...askIds)).map(replyList);
    return found.flatMap(([request, end, waiting]) => {
      const ofCall = fields(waiting);
      const read = () => (ofCall ? decode(records.decode(root, ofCall), request, end) : []);
      return (note ? unlessDamaged(read, note) : read()) ?? [];
    });
  }

  async function loadAll(root: string, askIds: readonly string[], note?: NoteDamage): Promise<AskRecord[]> {
    return (await Promise.all(inPortions(askIds, portion).map((ids) => load(root, ids, note)))).flat();
  }

  const loadOpen: Load<AskRecord> = async (found) =>
    (await Promise.all(found.map(({ root, ids }) => loadAll(root, ids))))
      .flat()
      .filter(({ settled }) => settled === undefined);

  /** Reads the requests with these ids that are open, without their calls. */
  const loadRequests: Load<PermissionRequest> = async (found) => {
    const ofGroups = link.groups(found).map(async (group) => {
      const names = group.flatMap(({ root }) => [keys.tree(root).asked, keys.tree(root).settled]);
      const asked = group.flatMap(({ ids }) => [ids.length, ...ids]);
      const events = replyList(await link.read("read_requests", names, ...asked));
      return group
        .flatMap(({ ids }) => ids)
        .flatMap((id, index) => {
          const event = bytes(events[index]);
          return event?.byteLength ? recent.decode(id, event) : [];
        });
    });
    return (await Promise.all(ofGroups)).flat();
  };

  /** Reads so many asks of a tree that are due and not damaged. */
  async function dueOf(root: string, limit: number): Promise<AskRecord[]> {
    const ids = new Set<string>();
    const found: AskRecord[] = [];
    for (let offset = 0; found.length < limit; offset += limit) {
      const range = [keys.tree(root).deadlines, "-inf", link.now(), "LIMIT", offset, limit] as const;
      const due = texts(await link.command("zrangebyscore", ...range)).map(askOfDeadline);
      const others = [...new Set(due)].filter((id) => !ids.has(id));
      for (const id of others) ids.add(id);
      found.push(...(await loadAll(root, others, damage.refusal)));
      if (due.length < limit) break;
    }
    return found;
  }

  /** Reads a page of what is open. */
  async function openPage<T>(
    { root, after, limit }: OpenFilter,
    read: Load<T>,
    idOf: (open: T) => string,
  ): Promise<T[]> {
    const rest = await openAfter(root === undefined ? await live.all() : [root], after);
    const found: T[] = [];
    // An ask that was settled since its id was read leaves its place to the next one: only the last page is short.
    for (;;) {
      const page = await rest(limit - found.length);
      const ofTrees = [...Map.groupBy(page, (entry) => entry.root)];
      const loaded = await read(ofTrees.map(([tree, asks]) => ({ root: tree, ids: asks.map(({ id }) => id) })));
      const byId = new Map(loaded.map((each) => [idOf(each), each]));
      found.push(...page.flatMap(({ id }) => byId.get(id) ?? []));
      if (page.length === 0 || found.length >= limit) return found;
    }
  }

  async function withCall(ref: CallRef): Promise<CallWithAsks | undefined> {
    const { asked, settled, call } = keys.tree(ref.root);
    const found = await link.read("read_asks_of_call", [call(callName(ref)), asked, settled]);
    return decodeWithCall(records, ref.root, found);
  }

  async function callOf(root: string, askId: string): Promise<CallWithAsks | undefined> {
    const { asked, settled, callOf, call } = keys.tree(root);
    const found = await link.read("read_call_of_ask", [asked, settled, callOf], call(""), askId);
    return decodeWithCall(records, root, found);
  }

  /** Reads the first open asks of some trees, from another one on. */
  async function openIn(roots: readonly string[], from: OpenAsk | undefined, count: number): Promise<OpenAsk[]> {
    const names = roots.map((root) => keys.tree(root).asks);
    const words = text(await link.read("read_open", names, from?.place ?? "-inf", count)).split(" ");
    return inPortions(words, 3)
      .flatMap(([id = "", place, tree]) => {
        const root = roots[Number(tree) - 1];
        return root === undefined ? [] : { id, place: Number(place), root };
      })
      .sort(byPlace);
  }

  async function openAfter(roots: readonly string[], after: string | undefined) {
    if (after === undefined) return createMerge(link.groups(roots), openIn);
    const from = await trees.find(after, async (root) => {
      const place = await link.command("zscore", keys.tree(root).asks, after);
      return place === null ? undefined : { id: after, place: number(place), root };
    });
    if (from !== undefined) return createMerge(link.groups(roots), openIn, from);
    // It was settled since; ids sort by time, so its position is known all the same.
    const merge = createMerge(link.groups(roots), openIn);
    const rest: OpenAsk[] = [];
    return async (count: number) => {
      for (let hasMore = true; hasMore && rest.length < count; ) {
        const page = await merge(maxMerged);
        rest.push(...page.filter(({ id }) => id > after));
        hasMore = page.length > 0;
      }
      return rest.splice(0, count);
    };
  }

  return {
    async get(sessionId: string, id: string): Promise<AskRecord | undefined> {
      const found = await trees.find(sessionId, async (root) => (await load(root, [id]))[0]);
      return found?.call.sessionId === sessionId ? found : undefined;
    },

    /** Finds an ask by the pointer that was written before it was opened. */
    find: (id: string) => trees.find(id, async (root) => (await load(root, [id]))[0]),

    withCall,
    /** Reads the call of an ask of this session, with every ask that it has opened. */
    async callOf(sessionId: string, id: string): Promise<CallWithAsks | undefined> {
      const found = await trees.find(sessionId, (root) => callOf(root, id));
      return found?.record.ref.sessionId === sessionId ? found : undefined;
    },
    ofCall: async (ref: CallRef) => [...((await withCall(ref))?.asks ?? [])],

    listOpen: (filter: OpenFilter) => openPage(filter, loadOpen, ({ request }) => request.id),
    listRequests: (filter: OpenFilter) => openPage(filter, loadRequests, ({ id }) => id),
    countOpen: () => countOpenAsks(options, load),

    async countLong(time: number): Promise<number> {
      const later = (await live.all()).map((root) =>
        link.command("zrangebyscore", keys.tree(root).deadlines, `(${time}`, "+inf"),
      );
      return (await Promise.all(later)).flatMap(texts).filter((member) => member === askOfDeadline(member)).length;
    },

    /** Lists the asks that are due, without damaged ones, which take no place of others. */
    async due(limit: number): Promise<AskRecord[]> {
      const found = await Promise.all((await live.due()).map((root) => dueOf(root, limit)));
      return found
        .flat()
        .sort((one, other) => one.request.expires - other.request.expires)
        .slice(0, limit);
    },
  };
}

/** Reads the asks with these ids of trees. */
type Load<T> = (found: readonly { root: string; ids: readonly string[] }[]) => Promise<T[]>;

/** An open ask, with its time of opening and its tree. */
interface OpenAsk {
  readonly id: string;
  readonly place: number;
  readonly root: string;
}

/** Compares asks by their time; of those that were opened at once in several trees, by their ids, as Redis sorts those of one tree. */
const byPlace = (one: OpenAsk, other: OpenAsk) => one.place - other.place || (one.id < other.id ? -1 : 1);

/**
 * Merges the open asks of groups of trees in their order, after `from`. Each call returns the next ones, and reads of each group about
 * as many as are needed: a few more than its share, and again of those that have more before the last of them, in one group all at once.
 */
function createMerge(
  groups: readonly (readonly string[])[],
  read: (roots: readonly string[], from: OpenAsk | undefined, count: number) => Promise<OpenAsk[]>,
  from?: OpenAsk,
): (count: number) => Promise<OpenAsk[]> {
  const heads = groups.map((roots) => ({ roots, entries: [] as OpenAsk[], last: from, isWhole: false }));

  async function readMore(head: (typeof heads)[number], count: number): Promise<void> {
    const found = await read(head.roots, head.last, count);
    head.isWhole = found.length < count;
    const { last } = head;
    head.entries.push(
      ...found.filter((entry) => last === undefined || (entry.id !== last.id && byPlace(last, entry) < 0)),
    );
    head.last = head.entries.at(-1) ?? last;
  }

  return async (count) => {
    for (let portion = 0; ; ) {
      const known = heads.flatMap(({ entries }) => entries).sort(byPlace);
      const end = known[count - 1];
      const unread = heads.filter(
        ({ last, isWhole }) => !isWhole && (end === undefined || last === undefined || byPlace(last, end) < 0),
      );
      if (unread.length === 0) {
        const next = new Set(known.slice(0, count));
        for (const head of heads) head.entries = head.entries.filter((entry) => !next.has(entry));
        return [...next];
      }
      // More may have the place of a head's last one than were read.
      portion = Math.max(2 * portion, Math.ceil(count / unread.length) + 2);
      await Promise.all(unread.map((head) => readMore(head, portion)));
    }
  };
}

/** Maximum number of asks that are merged at once to find a position, so that one script does not delay others for long. */
const maxMerged = 500;

/** Returns the ask of a member of `deadlines`: its id, or its id and "escalates" for its next step. */
export const askOfDeadline = (member: string) => member.split(" ", 1)[0] ?? "";

/** Message of the asks that are withdrawn when their call ends. */
export const callEnded = "The call ended.";

/** Encodes the settlement shared by all withdrawn asks of a call; a step adds the id of each ask. */
export function encodeWithdrawal({ sessionId, callId }: CallRef, message: string, time: number): Uint8Array {
  const outcome = PermissionOutcome.WITHDRAWN;
  return toBinary(
    PermissionSettledSchema,
    create(PermissionSettledSchema, { sessionId, callId, outcome, message, time }),
  );
}

const portion = 100;

/** Decodes an ask of a call; returns none if it was removed. */
function decode({ ref, part, spec, version }: CallRecord, request?: Reply, settled?: Reply): AskRecord[] {
  const [asked, end] = [bytes(request), bytes(settled)];
  if (!asked?.byteLength) return [];
  const { principal, person = principal, definitionId } = spec;
  const of = { call: ref, principal, person, definitionId, part, version };
  return [{ request: decodeAsked(asked), ...(end?.byteLength ? { settled: decodeSettled(end) } : {}), ...of }];
}

function decodeWithCall(records: RedisCallRecords, root: string, reply: Reply): CallWithAsks | undefined {
  const [ofCall, ...found] = replyList(reply);
  const waiting = fields(ofCall);
  if (waiting === undefined) return undefined;
  const record = records.decode(root, waiting);
  return { record, asks: found.map(replyList).flatMap(([request, end]) => decode(record, request, end)) };
}

async function countOpenAsks(
  { link, keys, live }: Pick<Parameters<typeof createRedisAsks>[0], "link" | "keys" | "live">,
  load: (root: string, askIds: readonly string[]) => Promise<AskRecord[]>,
): Promise<{ count: number; oldest?: number }> {
  const trees = await Promise.all(
    (await live.all()).map(async (root) => {
      const { asks } = keys.tree(root);
      const [count, first] = await Promise.all([
        link.command("zcard", asks),
        link.command("zrange", asks, 0, 0, "WITHSCORES"),
      ]);
      return { root, count: number(count), first: withPlaces(texts(first)) };
    }),
  );
  const count = trees.reduce((sum, tree) => sum + tree.count, 0);
  const [oldest] = trees
    .flatMap(({ root, first }) => first.map((entry) => ({ root, ...entry })))
    .sort((one, other) => one.place - other.place);
  const [ask] = oldest === undefined ? [] : await load(oldest.root, [oldest.id]);
  return ask === undefined ? { count } : { count, oldest: ask.request.created };
}
