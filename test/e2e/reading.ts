import type { SessionEvent, ToolOutput } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";

type Kind = Exclude<SessionEvent["event"]["case"], undefined>;
type Value<K extends Kind> = Extract<SessionEvent["event"], { case: K }>["value"];

/** A stream that a test reads step by step. */
export interface Reading {
  /** All events so far. */
  readonly seen: readonly SessionEvent[];
  /** The number to resume after. */
  readonly lastSeq: bigint;
  /** The next event of a kind; fails if the stream ends before. */
  until<K extends Kind>(kind: K): Promise<Value<K>>;
  /** The next event that fits; fails if the stream ends before. */
  find(fits: (event: SessionEvent) => boolean): Promise<SessionEvent>;
  /** Reads to the end of the stream and returns the last state of the call. */
  end(): Promise<ToolPart>;
}

/** Reads the events of an ExecuteTool or WatchSession stream. */
export function read(stream: AsyncIterable<{ event?: SessionEvent | undefined; lastSeq: bigint }>): Reading {
  const messages = stream[Symbol.asyncIterator]();
  // Begun at once: connect-node fails on a response that has ended before its first read.
  let first: ReturnType<typeof messages.next> | undefined = messages.next();
  first.catch(() => undefined);
  const seen: SessionEvent[] = [];
  let lastSeq = 0n;

  async function next(): Promise<SessionEvent | undefined> {
    for (;;) {
      const message = await (first ?? messages.next());
      first = undefined;
      if (message.done) return undefined;
      lastSeq = message.value.lastSeq;
      if (message.value.event === undefined) continue;
      seen.push(message.value.event);
      return message.value.event;
    }
  }

  async function find(fits: (event: SessionEvent) => boolean): Promise<SessionEvent> {
    for (;;) {
      const event = await next();
      if (event === undefined) throw new Error(`the stream ended after: ${seen.map(nameOf).join(", ")}`);
      if (fits(event)) return event;
    }
  }

  return {
    seen,
    get lastSeq() {
      return lastSeq;
    },
    find,
    async until(kind) {
      for (;;) {
        const event: object = (await find(({ event }) => event.case === kind)).event;
        if (isKind(event, kind)) return event.value;
      }
    },
    async end() {
      while ((await next()) !== undefined);
      const last = seen.at(-1)?.event;
      if (last?.case === "part") return last.value;
      throw new Error(`the last event is no state: ${seen.map(nameOf).join(", ")}`);
    },
  };
}

/** Describes an event by words such as `pending` or `permissionAsked`. */
export function nameOf({ event }: SessionEvent): string {
  return (event.case === "part" ? event.value.state.case : event.case) ?? "nothing";
}

/** The bytes of all output events, as text. */
export function outputOf(events: readonly SessionEvent[]): string {
  const pieces = events.flatMap(({ event }): ToolOutput[] => (event.case === "output" ? [event.value] : []));
  return Buffer.concat(pieces.map(({ data }) => data)).toString();
}

/** Takes any object, so that what is found has exactly the type that was looked for. */
function isKind<K extends Kind>(event: object, kind: K): event is { case: K; value: Value<K> } {
  return "case" in event && event.case === kind;
}
