import type { CallFilter, CallRecord, CallSpec } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { DamagedRecord } from "../parts.ts";
import { decodeRedisPart, decodeSealedJson } from "./events.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { withPlaces } from "./listing.ts";
import { type Fields, fields, inPortions, replyList, texts } from "./reply.ts";
import type { Trees } from "./trees.ts";

/** Reads of stored calls. */
export type RedisCallRecords = ReturnType<typeof createRedisCallRecords>;

/** Creates the reads of calls. */
export function createRedisCallRecords({ link, keys, trees }: { link: Link; keys: Keys; trees: Trees }) {
  function decode(root: string, call: Fields): CallRecord {
    return {
      ref: { root, sessionId: call.text("session"), callId: call.text("callId") },
      part: decodeSnapshot(call),
      spec: decodeRedisSpec(call.text("spec")),
      openedSeq: call.number("opened"),
      version: call.number("version"),
      epoch: call.number("epoch"),
      owner: call.number("lease") > link.now() ? call.text("owner") : "",
      attempts: call.number("attempts"),
      repeats: call.has("repeats") ? call.number("repeats") : 0,
      ...(call.has("prepared") ? { prepared: true } : {}),
      ...(call.has("hooked") ? { hooked: call.text("hooked") } : {}),
      ...(call.has("memo") ? { memo: call.text("memo") } : {}),
      ...(call.has("cancel") ? { cancel: call.text("cancel") } : {}),
      ...(call.has("assignment") ? { assignment: call.text("assignment") } : {}),
      ...(call.has("remote") ? { remote: JSON.parse(call.text("remote")) } : {}),
      ...(call.has("queuedUntil") ? { queuedUntil: call.number("queuedUntil") } : {}),
      ...(call.has("expired") ? { expired: true } : {}),
      ...(call.has("history") && call.number("history") < link.generationOf(root) ? { mayHaveRun: true } : {}),
    };
  }

  /** Reads the calls with these names that exist. */
  async function named(root: string, names: readonly string[]): Promise<Fields[]> {
    const found = await link.hashes(...names.map(keys.tree(root).call));
    return found.map(fields).filter((call) => call !== undefined);
  }

  async function one(root: string, sessionId: string, callId: string): Promise<CallRecord | undefined> {
    const [found] = await link.hashes(keys.tree(root).call(callName({ sessionId, callId })));
    const call = fields(found);
    return call && decode(root, call);
  }

  return {
    named,
    decode,
    find: ({ root, sessionId, callId }: CallRef) => one(root, sessionId, callId),
    get: (sessionId: string, callId: string) => trees.find(sessionId, (root) => one(root, sessionId, callId)),

    /** Finds a call by the pointer that was written before its start. */
    findAssigned: (assignment: string) =>
      trees.find(assignment, async (root) => {
        const { callOf, call } = keys.tree(root);
        const found = fields(await link.read("read_assigned", [callOf], call(""), assignment));
        return found && decode(root, found);
      }),

    findDelegated: async (sessionId: string, requestDigest: string): Promise<CallRecord[]> =>
      (await trees.find(sessionId, async (root) => {
        const { call, open } = keys.tree(root);
        const callsOfSession = call(callName({ sessionId, callId: "" }));
        const found = replyList(await link.read("read_delegated", [open(sessionId)], callsOfSession, requestDigest));
        const records = found.flatMap((each) => {
          const call = fields(each);
          return call ? decode(root, call) : [];
        });
        // The session may have been removed and created again, in another tree.
        return records.length === 0 ? undefined : records.filter(({ spec }) => spec.requestDigest === requestDigest);
      })) ?? [],

    async list({ sessionId, open = false, after, limit }: CallFilter): Promise<CallRecord[]> {
      const found = await trees.find(sessionId, async (root) => {
        const tree = keys.tree(root);
        const listed = open ? tree.open(sessionId) : tree.calls(sessionId);
        const calls: CallRecord[] = [];
        // A call that was removed since its id was read leaves its place to the next one: only the last page is short.
        for (let place = after?.openedSeq; ; ) {
          const [min, count] = [place === undefined ? "-inf" : `(${place}`, limit - calls.length];
          const range = [listed, min, "+inf", "WITHSCORES", "LIMIT", 0, count] as const;
          const page = withPlaces(texts(await link.command("zrangebyscore", ...range)));
          if (page.length === 0 && (await link.command("exists", tree.session(sessionId))) === 0) return undefined;
          const names = page.map(({ id }) => callName({ sessionId, callId: id }));
          const found = await Promise.all(inPortions(names, portion).map((some) => named(root, some)));
          calls.push(...found.flat().map((call) => decode(root, call)));
          if (page.length < count || calls.length === limit) return calls;
          place = page.at(-1)?.place;
        }
      });
      return found ?? [];
    },
  };
}

/** Returns the name of a call in its tree; session ids have no colon. */
export const callName = ({ sessionId, callId }: Pick<CallRef, "sessionId" | "callId">): string =>
  `${sessionId}:${callId}`;

/** Returns the last snapshot of a call, with the asks that are open now. */
function decodeSnapshot(call: Fields) {
  const revision = BigInt(call.text("revision"));
  const part = decodeRedisPart(call.bytes("part"));
  if (part.callId !== call.text("callId"))
    throw new DamagedRecord(`the record of call ${call.text("callId")} is that of another one`);
  return { ...part, revision, permissionIds: ids(call.text("waiting")) };
}

/** Splits a field that lists ids. */
export const ids = (field: string): string[] => field.split(" ").filter((id) => id !== "");

/** Parses a stored `CallSpec`. */
function decodeRedisSpec(spec: string): CallSpec {
  return decodeSealedJson(spec, "the request of a call") as CallSpec;
}

/** The calls whose leases this process renews, by owner and tree. Only the store knows the actual owners. */
export type HeldCalls = ReturnType<typeof createHeldCalls>;

/** One lease on a call. A later lease of the same owner on the same call is another object. */
export interface HeldLease {
  readonly ref: CallRef;
}

/** Records opened and claimed calls, until they are known to have ended or to have another owner. */
export function createHeldCalls() {
  const owners = new Map<string, Map<string, HeldLease>>();

  const keyOf = (ref: CallRef) => `${ref.root}:${callName(ref)}`;

  /** Drops one lease. What a step finds out about an earlier one, in whatever order answers come, does not touch a later one. */
  function drop(owner: string, held: HeldLease | undefined): void {
    const calls = owners.get(owner);
    if (calls === undefined || held === undefined || calls.get(keyOf(held.ref)) !== held) return;
    calls.delete(keyOf(held.ref));
    if (calls.size === 0) owners.delete(owner);
  }

  const get = (owner: string, ref: CallRef) => owners.get(owner)?.get(keyOf(ref));

  return {
    get,
    drop,

    add(owner: string, ref: CallRef): void {
      owners.set(owner, (owners.get(owner) ?? new Map<string, HeldLease>()).set(keyOf(ref), { ref }));
    },

    /** Drops an ended call of any owner. */
    ended(ref: CallRef): void {
      for (const owner of owners.keys()) drop(owner, get(owner, ref));
    },

    /** Groups the calls of an owner by tree, in portions. */
    portions(owner: string): HeldLease[][] {
      const byRoot = Map.groupBy(owners.get(owner)?.values() ?? [], ({ ref }) => ref.root);
      return [...byRoot.values()].flatMap((calls) => inPortions(calls, portion));
    },
  };
}

const portion = 100;
