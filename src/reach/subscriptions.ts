import { hash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  type PushSubscription,
  PushSubscriptionSchema,
  type StoredSecret,
  StoredSecretSchema,
} from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import type { PushDesk } from "./ports.ts";
import { isPublicKey, newVapidKey, readVapidKey, type VapidKey } from "./push-message.ts";

/** Browsers that receive pushes. */
export interface PushSubscriptions extends PushDesk {
  keyOf(id: string): VapidKey | undefined;
  /** Returns the browsers of a person whose credential may approve now. */
  of(personId: string): readonly PushSubscription[];
  /** Returns the persons who have such a browser. */
  persons(): readonly string[];
  remove(id: string): Promise<PushSubscription | undefined>;
  /** Reads changes of other replicas. */
  refresh(): Promise<void>;
}

/** Browsers of one credential; a further one replaces the oldest. */
const maxBrowsers = 10;
/** Browsers of the whole service. */
const maxSubscriptions = 1_000;

/**
 * Returns why an endpoint is refused; undefined if it is on the list. An entry with a port names exactly that place, also without TLS;
 * one without stands for https, and `*.` for any names below it.
 */
export function endpointProblem(endpoint: string, hosts: readonly string[]): string | undefined {
  if (!URL.canParse(endpoint)) return "it is no address";
  const { protocol, hostname, host, port, username, password } = new URL(endpoint);
  if (username !== "" || password !== "") return "it has a user";
  const isListed = hosts.some((entry) => {
    if (/:\d+$/.test(entry)) return host === entry && /^https?:$/.test(protocol);
    if (protocol !== "https:" || port !== "") return false;
    return entry.startsWith("*.") ? hostname.endsWith(entry.slice(1)) : hostname === entry;
  });
  return isListed ? undefined : `${protocol}//${host} is no push service of push_hosts`;
}

/** Creates the subscriptions over their tables. */
export function createSubscriptions({
  table,
  secrets,
  hosts,
  isApprover,
  now,
}: {
  table: RecordTable<PushSubscription>;
  secrets: RecordTable<StoredSecret>;
  /** Push services to which messages may go. */
  hosts: readonly string[];
  /** Returns true while a credential may approve. */
  isApprover(credential: string): boolean;
  now: () => number;
}): PushSubscriptions {
  const keys = new Map<string, VapidKey>();

  /** Two replicas may each store a key at first: each subscription goes on with the one that it was made with. */
  function keyOf(id: string): VapidKey | undefined {
    const stored = keys.has(id) ? undefined : secrets.current().find((secret) => secret.id === id);
    if (stored) keys.set(id, readVapidKey(stored.value));
    return keys.get(id);
  }

  async function current(): Promise<StoredSecret> {
    const oldest = () =>
      secrets
        .current()
        .filter(({ id }) => id.startsWith("vapid_"))
        .toSorted((one, other) => one.created - other.created || (one.id < other.id ? -1 : 1))[0];
    const found = oldest();
    if (found) return found;
    await secrets.refresh();
    const value = newVapidKey();
    const made = create(StoredSecretSchema, { id: `vapid_${digestOf(value)}`, value, created: now() });
    if (oldest() === undefined) await secrets.put(made);
    return oldest() ?? made;
  }

  const isLive = ({ credentialId, endpoint }: PushSubscription) =>
    isApprover(credentialId) && endpointProblem(endpoint, hosts) === undefined;

  return {
    keyOf,
    publicKey: async () => keyOf((await current()).id)?.publicKey ?? new Uint8Array(),
    of: (personId) => table.current().filter((each) => each.personId === personId && isLive(each)),
    persons: () => [
      ...new Set(
        table
          .current()
          .filter(isLive)
          .map(({ personId }) => personId),
      ),
    ],
    refresh: async () => {
      await Promise.all([table.refresh(), secrets.refresh()]);
    },
    remove: table.remove,
    async subscribe({ id: credentialId, identity }, { endpoint, p256dh, auth, pushKey }) {
      const problem = endpointProblem(endpoint, hosts);
      if (problem !== undefined) throw refused("endpoint", problem);
      if (!isPublicKey(p256dh)) throw refused("p256dh", "it is no point of the curve P-256");
      const key = secrets.current().find(({ id }) => keyOf(id)?.publicKey.equals(pushKey));
      if (key === undefined) throw refused("push_key", "it is no key of this service; subscribe again");
      const own = table.current().filter((each) => each.credentialId === credentialId);
      const id = `push_${digestOf(endpoint)}`;
      const others = own.filter((each) => each.id !== id).toSorted((one, other) => other.created - one.created);
      for (const { id: old } of others.slice(maxBrowsers - 1)) await table.remove(old);
      if (table.current().length >= maxSubscriptions) await removeDead();
      if (table.current().length >= maxSubscriptions)
        throw new RequestError(
          ErrorReason.QUOTA_EXCEEDED,
          `${maxSubscriptions} browsers are subscribed; end sign-ins that are not used`,
          { max_subscriptions: String(maxSubscriptions) },
        );
      const owner = { credentialId, personId: identity?.person.id ?? "" };
      const made = { id, endpoint, p256dh, auth, ...owner, keyId: key.id, created: now() };
      const isNew = table.current().every((each) => each.id !== id);
      await table.put(create(PushSubscriptionSchema, made));
      return isNew;
    },
    async unsubscribe({ id: credentialId }, endpoint) {
      const id = `push_${digestOf(endpoint)}`;
      if (table.current().some((each) => each.id === id && each.credentialId === credentialId)) await table.remove(id);
    },
  };

  async function removeDead(): Promise<void> {
    for (const each of table.current()) if (!isLive(each)) await table.remove(each.id);
  }
}

const digestOf = (text: string | Uint8Array) => hash("sha256", text, "base64url").slice(0, 32);

function refused(field: string, why: string): RequestError {
  return new RequestError(ErrorReason.INVALID_MESSAGE, `${field} is refused: ${why}`, { field });
}
