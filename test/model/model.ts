/** End of a call: a result, or one of the contract's reasons. */
export type End = "completed" | "FAILED" | "CANCELLED" | "REJECTED" | "EXECUTOR_LOST";

/** Ask of a call: open, or settled with an outcome by a principal. */
export interface Ask {
  outcome: "open" | "ONCE" | "ALWAYS" | "REJECT" | "WITHDRAWN";
  by: string;
  replyId: string;
  /** The widest offer was chosen. */
  isWide: boolean;
  /** It was settled by the grant of another call, and counts only while that grant lives. */
  isCovered: boolean;
}

/** A call. Clients see `new`, `asking`, `asked` and `approved` as pending. */
export interface Call {
  session: string;
  /**
   * A call of `look` is recorded once: it is accepted, started and ended in one step. One of `parent` makes a call of `ask`, may be
   * entered again, and ends with it.
   */
  tool: "open" | "ask" | "hold" | "look" | "parent";
  key: string;
  phase: "new" | "asking" | "asked" | "approved" | "running" | "ended";
  end?: End | undefined;
  /** The live replica that runs it; empty while it waits for an approval, or if that replica is dead. */
  owner: string;
  /** The replica that settled its last ask, and that claims it unless it dies first. */
  claimer?: string | undefined;
  /** Number of times that its body was entered. */
  entered: number;
  /** It asks again if a grant by which an ask was settled is revoked before it starts. */
  asks: readonly Ask[];
  /** A requested cancellation; `maybe` if the replica died before it responded. */
  cancel?: "requested" | "maybe" | undefined;
  released?: End | undefined;
}

/** A grant, named after the call whose ask it came from. A wider one reaches the other trees a little later. */
export interface Grant {
  root: string;
  key: string;
  isWide: boolean;
  isAlive: boolean;
  isSpread: boolean;
}

/** State of the service. Immutable: every step returns another one. */
export interface Model {
  /** The sessions, each with its root. */
  roots: Readonly<Record<string, string>>;
  closed: readonly string[];
  live: readonly string[];
  calls: Readonly<Record<string, Call>>;
  grants: Readonly<Record<string, Grant>>;
}

/** An act of a client or of the environment; `at` is the replica that gets it. */
export type Act =
  | { do: "execute"; at: string; call: string; session: string; tool: Call["tool"]; key: string; afterSeq: number }
  | { do: "reply"; at: string; call: string; nth: number; by: string; answer: Answer; isWide: boolean; replyId: string }
  | { do: "cancel"; at: string; call: string }
  | { do: "revoke"; at: string; grant: string }
  | { do: "close"; at: string; session: string }
  | { do: "release"; call: string; end: End }
  /** Kills a replica; another one takes its place. */
  | { do: "kill"; replica: string; next: string }
  /** Kills the only replica; one whose tools have other words takes its place, and recovers orphans. */
  | { do: "upgrade"; replica: string; next: string }
  /** Every replica recovers orphans; these are they. */
  | { do: "recover"; calls: readonly string[] }
  /** No lease is renewed until all have lapsed; then each replica recovers orphans before it renews. These calls are open. */
  | { do: "freeze"; calls: readonly string[] };

type Answer = "ONCE" | "ALWAYS" | "REJECT";

/** An act with its response: `ok`, the reason of a refusal, or `lost` if the replica died before it responded. */
export interface Deed {
  act: Act;
  response: string;
}

/**
 * Returns the states in which the service may come to rest after concurrent deeds. Each deed is one step at some moment, with
 * steps of the engine in between. An empty result means that no order explains the responses.
 */
export function outcomes(before: readonly Model[], done: readonly Deed[]): Model[] {
  const deeds = done.flatMap(oneByOne);
  const seen = new Set<string>();
  const rest: Model[] = [];
  const left = before.map((model) => ({ model, deeds }));
  for (let at = left.pop(); at; at = left.pop()) {
    const key = JSON.stringify([at.model, at.deeds.map((deed) => deeds.indexOf(deed))]);
    if (seen.has(key)) continue;
    seen.add(key);
    const { model, deeds: todo } = at;
    const steps = ownSteps(model);
    if (steps.length === 0 && todo.length === 0) rest.push(model);
    for (const next of [...steps, ...parentSteps(model, (owner) => owner === "")])
      left.push({ model: next, deeds: todo });
    for (const deed of todo) {
      const others = todo.filter((other) => other !== deed);
      for (const next of apply(model, deed)) left.push({ model: next, deeds: others });
    }
  }
  return rest;
}

/** Returns what clients and the ledger of the tools can see of a model at rest, as text. */
export function view({ calls, grants, closed }: Model): string {
  const shown = Object.entries(calls).map(([id, call]) => viewCall(id, { ...call, state: call.end ?? stateOf(call) }));
  const given = Object.entries(grants).map(([id, { isWide, isAlive }]) => viewGrant(id, isWide, isAlive));
  return [...shown, ...given, ...closed.map(viewClosed)].sort().join("\n");
}

/**
 * Returns the line of a call in a view. The owner of a call that waits for approval is left out: any replica may claim it; so is that
 * of a parent, which may wait for its call without one.
 */
export function viewCall(
  id: string,
  { state, owner, entered, asks, tool }: Pick<Call, "owner" | "entered"> & Viewed,
): string {
  const isHeld = (state === "running" && tool !== "parent") || (state === "pending" && asks.at(-1)?.outcome !== "open");
  const asked = asks.map(({ outcome, by, replyId }) => `, ask ${outcome} ${by} ${replyId}`.trimEnd()).join("");
  return `call ${id} ${state}${isHeld ? ` at ${owner || "nobody"}` : ""}, entered ${entered}${asked}`;
}

type Asked = Pick<Ask, "by" | "replyId"> & { outcome: string };
type Viewed = { state: string; asks: readonly Asked[]; tool: string };

/** Returns the line of a grant in a view. */
export function viewGrant(id: string, isWide: boolean, isAlive: boolean): string {
  return `grant ${id} ${isWide ? "project" : "session"} ${isAlive ? "living" : "dead"}`;
}

/** Returns the line of a closed session in a view. */
export const viewClosed = (session: string): string => `session ${session} closed`;

const stateOf = ({ phase }: Call) => (phase === "running" ? "running" : "pending");

/**
 * Returns every step of started parents whose owner is as given. One without an owner may in fact have one, or be resumed by the
 * replica that records the end of its call; otherwise recovery resumes it.
 */
function parentSteps(model: Model, isMeant: (owner: string) => boolean): Model[] {
  return Object.entries(model.calls).flatMap(([id, call]) => {
    if (call.tool !== "parent" || call.phase !== "running" || !isMeant(call.owner)) return [];
    const child = model.calls[`${id}.1`];
    const steps = call.cancel === "requested" ? [endParent(model, id, "CANCELLED")] : [];
    if (child ? child.phase === "ended" : model.closed.includes(call.session))
      return [...steps, endParent(model, id, "completed")];
    if (child) return steps;
    const { session, key, owner } = call;
    const made: Call = { session, key, tool: "ask", phase: "new", owner, entered: 0, asks: [] };
    return [...steps, { ...model, calls: { ...model.calls, [`${id}.1`]: made } }];
  });
}

/** Ends a parent, and its open call in the same step. */
function endParent(model: Model, id: string, end: End): Model {
  return changeAll(model, (call, other) => {
    if (other === id) return ended(call, end);
    return other === `${id}.1` && call.phase !== "ended" ? ended(call, "CANCELLED") : {};
  });
}

/** Returns every step that the engine takes by itself now. */
function ownSteps(model: Model): Model[] {
  const steps = parentSteps(model, (owner) => owner !== "");
  for (const [id, call] of Object.entries(model.calls)) {
    const to = (change: Partial<Call>) => steps.push(withCall(model, id, change));
    if (call.phase === "ended") continue;
    if (call.cancel === "maybe") for (const cancel of ["requested", undefined] as const) to({ cancel });
    if (call.cancel === "requested" && call.phase !== "running") to(ended(call, "CANCELLED"));
    if (call.owner === "" && call.phase === "approved" && model.live.includes(call.claimer ?? ""))
      to({ owner: call.claimer ?? "", claimer: undefined });
    // The steps below are taken by the replica that runs the call.
    if (call.owner === "") continue;
    if (call.phase === "new") to({ phase: call.tool !== "ask" || isCovered(model, call) ? "running" : "asking" });
    if (call.phase === "asking")
      to(isCoveredHere(model, call) ? { phase: "new" } : { phase: "asked", owner: "", asks: [...call.asks, opened] });
    if (call.phase === "approved")
      to({ phase: call.asks.at(-1)?.isCovered && !isCovered(model, call) ? "asking" : "running" });
    if (call.phase !== "running" || call.tool === "parent") continue;
    if (call.entered === 0) to({ entered: 1 });
    else {
      if (call.cancel === "requested") to(ended(call, "CANCELLED"));
      if (call.released) to(ended(call, call.released));
      if (call.tool !== "hold") to(ended(call, "completed"));
    }
  }
  for (const [id, grant] of Object.entries(model.grants))
    if (!grant.isSpread) steps.push({ ...model, grants: { ...model.grants, [id]: { ...grant, isSpread: true } } });
  return steps;
}

/** Applies a deed. Returns nothing if its response contradicts the model. */
function apply(model: Model, { act, response }: Deed): Model[] {
  const isLost = response === "lost";
  /** A lost act may have happened or not. */
  const done = (next: Model) => (isLost ? [next, model] : [next]);
  const refused = (reason: string) => (isLost || response === reason ? [model] : []);
  switch (act.do) {
    case "execute": {
      const { call: id, session, tool, key, at } = act;
      const known = model.calls[id];
      if (known) return refused(known.tool === tool && known.key === key ? "ok" : "CALL_ID_REUSED");
      if (model.closed.includes(session)) return refused("SESSION_CLOSED");
      if (!isLost && response !== "ok") return [];
      const call: Call = {
        session,
        tool,
        key,
        phase: "new",
        owner: model.live.includes(at) ? at : "",
        entered: 0,
        asks: [],
        ...(tool === "look" && { phase: "ended", end: "completed", owner: "", entered: 1 }),
      };
      return done({ ...model, calls: { ...model.calls, [id]: call } });
    }
    case "reply": {
      const call = model.calls[act.call];
      const ask = call?.asks[act.nth];
      if (!call || !ask) throw new Error(`${act.call} has not asked ${act.nth + 1} times`);
      if (ask.outcome !== "open") return refused(toLateReply(ask, act));
      return isLost || response === "ok" ? done(settle(model, call, act)) : [];
    }
    case "cancel":
      return [cancelled(model, [act.call], isLost)];
    case "close": {
      const sessions = Object.keys(model.roots).filter((id) => id === act.session || model.roots[id] === act.session);
      const calls = Object.keys(model.calls).filter((id) => sessions.includes(model.calls[id]?.session ?? ""));
      const closed = [...new Set([...model.closed, ...sessions])].sort();
      return done({ ...cancelled(model, calls, isLost), closed });
    }
    case "revoke": {
      const grant = model.grants[act.grant];
      if (!grant) throw new Error(`there is no grant ${act.grant}`);
      return done({ ...model, grants: { ...model.grants, [act.grant]: { ...grant, isAlive: false } } });
    }
    case "release": {
      const isHeld = model.calls[act.call]?.phase === "running" && model.calls[act.call]?.owner !== "";
      return [isHeld ? withCall(model, act.call, { released: act.end }) : model];
    }
    case "kill": {
      const live = [...model.live.filter((name) => name !== act.replica), act.next];
      // A parent may have been parked, and the replica that would have resumed it may be dead.
      const isOrphaned = (call: Call) =>
        call.owner === act.replica || (call.tool === "parent" && call.phase === "running");
      return [{ ...changeAll(model, (call) => (isOrphaned(call) ? { owner: "" } : {})), live }];
    }
    case "upgrade": {
      const orphaned = apply(model, { act: { ...act, do: "kill" }, response });
      return orphaned.map((killed) => changeAll(killed, (call) => rebound(call, act.next)));
    }
    case "recover":
      return recovered(model, act.calls[0] ?? "");
    case "freeze":
      return thawed(model, act.calls[0] ?? "");
  }
}

/** Splits a deed: calls are lost and claimed one by one. */
function oneByOne({ act, response }: Deed): Deed[] {
  if (act.do !== "recover" && act.do !== "freeze") return [{ act, response }];
  return act.calls.map((call) => ({ act: { ...act, calls: [call] }, response }));
}

/** Settles an ask, with everything that follows in the same step. */
function settle(model: Model, call: Call, { at, call: id, by, answer, isWide, replyId }: Act & { do: "reply" }): Model {
  const ask: Ask = { outcome: answer, by, replyId, isWide: answer === "ALWAYS" && isWide, isCovered: false };
  if (answer === "REJECT") return withCall(model, id, { ...ended(call, "REJECTED"), asks: replaceLast(call, ask) });
  const settled = withCall(model, id, { phase: "approved", claimer: at, asks: replaceLast(call, ask) });
  if (answer === "ONCE") return settled;
  const root = model.roots[call.session] ?? "";
  const covered = changeAll(settled, (other) =>
    other.phase === "asked" && other.key === call.key && model.roots[other.session] === root
      ? {
          phase: "approved",
          claimer: at,
          asks: replaceLast(other, { ...ask, replyId: "", isWide: false, isCovered: true }),
        }
      : {},
  );
  const grant = { root, key: call.key, isWide, isAlive: true, isSpread: !isWide };
  return { ...covered, grants: { ...model.grants, [id]: grant } };
}

/** Returns the response to an answer that comes after the settlement. */
function toLateReply({ outcome, by, replyId, isWide }: Ask, reply: Act & { do: "reply" }): string {
  const isSameContent = outcome === reply.answer && isWide === (reply.answer === "ALWAYS" && reply.isWide);
  const isSame = by === reply.by && isSameContent && replyId === reply.replyId;
  if (isSame) return "ok";
  if (replyId !== "" && replyId === reply.replyId) return "REPLY_ID_REUSED";
  return outcome === "WITHDRAWN" ? "ASK_CLOSED WITHDRAWN" : `ALREADY_ANSWERED ${outcome} ${by}`;
}

/** Returns the outcomes of recovery for one call. */
function recovered(model: Model, id: string): Model[] {
  const call = model.calls[id];
  if (!call || call.phase === "ended" || call.phase === "asked" || call.owner !== "") return [model];
  if (call.phase === "running" && call.tool !== "parent") return [withCall(model, id, ended(call, "EXECUTOR_LOST"))];
  const phase = call.phase === "approved" || call.phase === "running" ? call.phase : "new";
  return model.live.map((owner) => withCall(model, id, { owner, phase, claimer: undefined }));
}

/** Returns the change of a call whose tool has other words at the replica that takes it over: one that has not started asks again. */
function rebound(call: Call, owner: string): Partial<Call> {
  if (call.phase === "running" && call.owner === "" && call.tool !== "parent") return ended(call, "EXECUTOR_LOST");
  if (call.phase !== "asked" && call.phase !== "approved") return {};
  const last = call.asks.at(-1);
  const asks = last?.outcome === "open" ? replaceLast(call, { ...last, outcome: "WITHDRAWN" }) : call.asks;
  return { asks, phase: "new", owner, claimer: undefined };
}

/** Returns the outcomes of a freeze for one call: the replica that recovers first may claim it, or find its lease renewed. */
function thawed(model: Model, id: string): Model[] {
  const call = model.calls[id];
  if (!call || call.owner === "") return recovered(model, id);
  // A replica does not claim a call that it runs.
  if (call.phase === "running" && model.live.length === 1) return [model];
  return [model, ...recovered(withCall(model, id, { owner: "" }), id)];
}

function cancelled(model: Model, ids: readonly string[], isLost: boolean): Model {
  return changeAll(model, (call, id) =>
    ids.includes(id) && call.phase !== "ended" && call.cancel !== "requested"
      ? { cancel: isLost ? "maybe" : "requested" }
      : {},
  );
}

function isCovered(model: Model, call: Call): boolean {
  const reaches = ({ isAlive, isWide, isSpread, key }: Grant) => isAlive && isWide && isSpread && key === call.key;
  return isCoveredHere(model, call) || Object.values(model.grants).some(reaches);
}

/** True if a grant saved in the call's own tree covers it: the tree always sees such a grant. */
function isCoveredHere({ grants, roots }: Model, { key, session }: Call): boolean {
  return Object.values(grants).some((grant) => grant.isAlive && grant.key === key && grant.root === roots[session]);
}

const opened: Ask = { outcome: "open", by: "", replyId: "", isWide: false, isCovered: false };

const replaceLast = ({ asks }: Call, ask: Ask): Ask[] => [...asks.slice(0, -1), ask];

function ended(call: Call, end: End): Partial<Call> {
  const last = call.asks.at(-1);
  const withdrawn = last?.outcome === "open" ? { asks: replaceLast(call, { ...last, outcome: "WITHDRAWN" }) } : {};
  return { ...withdrawn, phase: "ended", end, owner: "", claimer: undefined, cancel: undefined, released: undefined };
}

function withCall(model: Model, id: string, change: Partial<Call>): Model {
  return changeAll(model, (_, other) => (other === id ? change : {}));
}

function changeAll(model: Model, change: (call: Call, id: string) => Partial<Call>): Model {
  const changed = Object.entries(model.calls).map(([id, call]) => [id, { ...call, ...change(call, id) }] as const);
  return { ...model, calls: Object.fromEntries(changed) };
}
