import { equals } from "@bufbuild/protobuf";
import { PermissionOutcome, type PermissionSettled, Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { WatchPermissionsResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { type PermissionRequest, PermissionRequestSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { filterCalls } from "../../view/ask-filter.ts";
import { callKeyOf, farewellMs, inertMs } from "../../view/asks.ts";
import { settledUnseen } from "../../view/outcomes.ts";
import { isApproval, settledWords } from "../view/settled.ts";
import { type FileTexts, shownWith } from "../view/whole-request.ts";

/** A call that waits for approval. Immutable: a change replaces the card under its key. */
export interface Card {
  readonly key: string;
  /** The open requests, oldest first; of an ended card the last ones known. */
  readonly asks: readonly [PermissionRequest, ...PermissionRequest[]];
  /** The texts of the files of each request, once they were read. */
  readonly texts: ReadonlyMap<PermissionRequest, FileTexts>;
  /** Outcomes of the requests that are settled. */
  readonly ends: readonly { words: string; approved: boolean; withdrawn: boolean }[];
  /** Time at which its last request was settled, by the clock; absent while it waits. */
  readonly endedAt?: number;
}

/** The waiting calls, and the selected one. */
export interface Cards {
  /** Applies a frame of WatchPermissions; a new snapshot ends the cards that it lacks. */
  apply(frame: WatchPermissionsResponse): void;
  /** Replaces requests of a card by those that have all of the input and the change, with the texts of their files. */
  showWhole(card: Card, whole: ReadonlyMap<PermissionRequest, FileTexts>): void;
  all(): readonly Card[];
  /** The cards that the filter finds; equal ones share a row. */
  rows(): readonly (readonly Card[])[];
  /** Open cards that are equal to this one, without it. */
  equalTo(card: Card): readonly Card[];
  /** Sets the filter, see `filterCalls`; returns the present one. */
  filter(text?: string): string;
  selected(): Card | undefined;
  move(by: number): void;
  /** Records that the selected card is on the screen in its current form. */
  shown(): void;
  /** Milliseconds until the card on the screen can be approved, so that a stray key press cannot approve a new one. */
  inertMs(): number;
  /** Removes cards whose outcome was shown long enough. */
  sweep(): void;
}

/** Starts without cards; the clock is monotonic, in milliseconds. */
export function createCards(clock: () => number, nameOf: (sessionId: string) => string = (id) => id): Cards {
  const cards = new Map<string, Card>();
  let selectedKey: string | undefined;
  let wanted = "";
  let seen: { card: Card | undefined; since: number } = { card: undefined, since: 0 };
  /** Ids of the requests in the snapshot that is being received. */
  let snapshot: Set<string> | undefined;

  const all = () => [...cards.values()];
  const rows = () => filterCalls(all(), wanted, { requests: ({ asks }) => asks, isOpen, nameOf });
  const equalTo = (card: Card) => (rows().find((row) => row.includes(card)) ?? []).filter((other) => other !== card);
  function selected(): Card | undefined {
    const visible = rows().flat();
    const card = visible.find(({ key }) => key === selectedKey) ?? visible[0];
    selectedKey = card?.key;
    return card;
  }

  function opened(ask: PermissionRequest): void {
    snapshot?.add(ask.id);
    const key = callKeyOf(ask);
    const card = cards.get(key);
    const waits = card !== undefined && card.endedAt === undefined;
    const known = waits && card.asks.find(({ id, digest }) => id === ask.id && digest === ask.digest);
    if (known) {
      // A snapshot repeats requests that are known; votes and steps may have been missed.
      const { votes, escalations } = ask;
      if (!equals(PermissionRequestSchema, known, { ...known, votes, escalations }))
        changed(ask.id, { votes, escalations });
      return;
    }
    const others = waits ? card.asks.filter(({ id }) => id !== ask.id) : [];
    const [first = ask, ...rest] = [...others, ask];
    const { texts, ends } = waits ? card : { texts: new Map<PermissionRequest, FileTexts>(), ends: [] };
    cards.set(key, { key, asks: [first, ...rest], texts, ends });
  }

  function ended(id: string, end: Card["ends"][number]): void {
    const card = all().find((card) => card.endedAt === undefined && card.asks.some((ask) => ask.id === id));
    if (!card) return;
    const ends = [...card.ends, end];
    const [first, ...rest] = card.asks.filter((ask) => ask.id !== id);
    cards.set(card.key, first ? { ...card, asks: [first, ...rest], ends } : { ...card, ends, endedAt: clock() });
  }

  function changed(permissionId: string, fields: Partial<Pick<PermissionRequest, "votes" | "escalations">>): void {
    for (const card of all()) {
      const ask = card.asks.find(({ id }) => id === permissionId);
      if (ask === undefined) continue;
      const now = { ...ask, ...fields };
      const texts = new Map([...card.texts].map(([of, text]) => [of === ask ? now : of, text]));
      const [first = now, ...rest] = card.asks.map((each) => (each === ask ? now : each));
      cards.set(card.key, { ...card, asks: [first, ...rest], texts });
    }
  }

  function endMissing(known: ReadonlySet<string>): void {
    for (const { asks, endedAt } of all())
      for (const { id } of asks)
        if (endedAt === undefined && !known.has(id))
          ended(id, { words: settledUnseen, approved: false, withdrawn: false });
  }

  return {
    all,
    rows,
    equalTo,
    filter(text = wanted) {
      wanted = text;
      return wanted;
    },
    selected,
    apply({ event, storeId, snapshotEnd }) {
      if (storeId !== "") snapshot = new Set();
      if (event?.event.case === "permissionAsked") opened(event.event.value);
      const change = event?.event;
      if (change?.case === "permissionVoted") changed(change.value.permissionId, { votes: change.value.votes });
      if (change?.case === "permissionEscalated")
        changed(change.value.permissionId, { escalations: change.value.escalations });
      if (event?.event.case === "permissionSettled") ended(event.event.value.permissionId, endOf(event.event.value));
      if (snapshotEnd && snapshot) endMissing(snapshot);
      if (snapshotEnd) snapshot = undefined;
    },
    showWhole({ key }, whole) {
      const card = cards.get(key);
      if (card === undefined) return;
      const isSame = (one: PermissionRequest, { id, digest }: PermissionRequest) =>
        one.id === id && one.digest === digest;
      const [first, ...rest] = card.asks.map((ask) => [...whole.keys()].find((one) => isSame(one, ask)) ?? ask);
      if (first) cards.set(key, { ...card, asks: [first, ...rest], texts: new Map([...card.texts, ...whole]) });
    },
    move(by) {
      const [now, all] = [selected(), rows()];
      const at = all.findIndex((row) => row.some((card) => card === now)) + by;
      selectedKey = all[Math.min(Math.max(at, 0), all.length - 1)]?.[0]?.key;
    },
    shown() {
      if (seen.card !== selected()) seen = { card: selected(), since: clock() };
    },
    inertMs: () => (seen.card === selected() ? Math.max(0, seen.since + inertMs - clock()) : inertMs),
    sweep() {
      for (const { key, endedAt } of all()) {
        if (endedAt === undefined || clock() < endedAt + farewellMs) continue;
        const keys = rows().flatMap(([first]) => first?.key ?? []);
        if (key === selected()?.key) selectedKey = keys[keys.indexOf(key) + 1] ?? keys[keys.indexOf(key) - 1];
        cards.delete(key);
      }
    },
  };
}

/** Checks whether the card's call still waits for approval. */
export function isOpen({ endedAt }: Card): boolean {
  return endedAt === undefined;
}

/** Checks whether all of a card's requests is here. The text of a file that cannot be read is not. */
export function isShownWhole({ asks, texts }: Card): boolean {
  return asks.every((ask) => shownWith(ask, texts.get(ask) ?? new Map()) === Shown.WHOLE);
}

/** The outcomes of a card in words, without requests that were withdrawn because of another answer. */
export function endWords({ ends }: Card): string {
  const answers = ends.filter(({ withdrawn }) => !withdrawn);
  return [...new Set((answers.length > 0 ? answers : ends).map(({ words }) => words))].join("; ");
}

function endOf(settled: PermissionSettled): Card["ends"][number] {
  const { outcome } = settled;
  return {
    words: settledWords(settled),
    approved: isApproval(outcome),
    withdrawn: outcome === PermissionOutcome.WITHDRAWN,
  };
}
