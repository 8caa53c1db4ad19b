import { PermissionOutcome, type PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { WatchPermissionsResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { callKeyOf, farewellMs, inertMs } from "../../view/asks.ts";
import { settledUnseen } from "../../view/outcomes.ts";
import { isApproval, settledWords } from "../view/settled.ts";

/** A call that waits for people; a change makes a new card with the same key. */
export interface Card {
  readonly key: string;
  /** Those that are open, in the order they were opened; the last ones known if it has ended. */
  readonly asks: readonly [PermissionRequest, ...PermissionRequest[]];
  /** How those asks ended that are not open any more, in words. */
  readonly ends: readonly { words: string; approved: boolean; withdrawn: boolean }[];
  /** When nothing of it was open any more, by the clock; absent while it waits. */
  readonly endedAt?: number;
}

/** The calls that wait, and the one that a person looks at. */
export interface Cards {
  /** Takes what WatchPermissions sends; a new snapshot ends the cards that it lacks. */
  apply(frame: WatchPermissionsResponse): void;
  all(): readonly Card[];
  selected(): Card | undefined;
  move(by: number): void;
  /** Tells that the selected card is on the screen as it is now. */
  shown(): void;
  /** How long until what is on the screen may be approved, in ms: nobody can mean to answer what came up just now. */
  inertMs(): number;
  /** Takes cards away whose end has been shown for a while. */
  sweep(): void;
}

/** Starts with no cards; the clock counts milliseconds and never goes back. */
export function createCards(clock: () => number): Cards {
  const cards = new Map<string, Card>();
  let selectedKey: string | undefined;
  let seen: { card: Card | undefined; since: number } = { card: undefined, since: 0 };
  /** The asks of the snapshot that is being sent. */
  let snapshot: Set<string> | undefined;

  const all = () => [...cards.values()];
  function selected(): Card | undefined {
    if (selectedKey === undefined || !cards.has(selectedKey)) selectedKey = cards.keys().next().value;
    return selectedKey === undefined ? undefined : cards.get(selectedKey);
  }

  function opened(ask: PermissionRequest): void {
    snapshot?.add(ask.id);
    const key = callKeyOf(ask);
    const card = cards.get(key);
    const waits = card !== undefined && card.endedAt === undefined;
    // A snapshot sends again what is known.
    if (waits && card.asks.some(({ id, digest }) => id === ask.id && digest === ask.digest)) return;
    const others = waits ? card.asks.filter(({ id }) => id !== ask.id) : [];
    const [first = ask, ...rest] = [...others, ask];
    cards.set(key, { key, asks: [first, ...rest], ends: waits ? card.ends : [] });
  }

  function ended(id: string, end: Card["ends"][number]): void {
    const card = all().find((card) => card.endedAt === undefined && card.asks.some((ask) => ask.id === id));
    if (!card) return;
    const ends = [...card.ends, end];
    const [first, ...rest] = card.asks.filter((ask) => ask.id !== id);
    cards.set(card.key, first ? { ...card, asks: [first, ...rest], ends } : { ...card, ends, endedAt: clock() });
  }

  function endMissing(known: ReadonlySet<string>): void {
    for (const { asks, endedAt } of all())
      for (const { id } of asks)
        if (endedAt === undefined && !known.has(id))
          ended(id, { words: settledUnseen, approved: false, withdrawn: false });
  }

  return {
    all,
    selected,
    apply({ event, storeId, snapshotEnd }) {
      if (storeId !== "") snapshot = new Set();
      if (event?.event.case === "permissionAsked") opened(event.event.value);
      if (event?.event.case === "permissionSettled") ended(event.event.value.permissionId, endOf(event.event.value));
      if (snapshotEnd && snapshot) endMissing(snapshot);
      if (snapshotEnd) snapshot = undefined;
    },
    move(by) {
      const keys = [...cards.keys()];
      const at = keys.indexOf(selected()?.key ?? "") + by;
      selectedKey = keys[Math.min(Math.max(at, 0), keys.length - 1)];
    },
    shown() {
      if (seen.card !== selected()) seen = { card: selected(), since: clock() };
    },
    inertMs: () => (seen.card === selected() ? Math.max(0, seen.since + inertMs - clock()) : inertMs),
    sweep() {
      for (const { key, endedAt } of all()) {
        if (endedAt === undefined || clock() < endedAt + farewellMs) continue;
        const keys = [...cards.keys()];
        if (key === selected()?.key) selectedKey = keys[keys.indexOf(key) + 1] ?? keys[keys.indexOf(key) - 1];
        cards.delete(key);
      }
    },
  };
}

/** How a card's call was answered, in words: what was withdrawn because of another answer says nothing. */
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
