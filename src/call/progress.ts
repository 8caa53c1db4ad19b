import { create, type JsonObject } from "@bufbuild/protobuf";
import { type ToolProgress, ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { ToolFailure } from "../tool/errors.ts";

/** Size of title and metadata: they are in the terminal part too, whose event also holds the result. */
const maxShownBytes = 262_144;
const emitMs = 50;

/**
 * Creates the title and metadata that a running tool shows. `emit` gets the first report at once, then the latest, at most every
 * 50 ms, in order.
 */
export function createProgress(callId: string, emit: (event: ToolProgress) => Promise<void>) {
  const shown: { title?: string; metadata?: JsonObject } = {};
  let timer: NodeJS.Timeout | undefined;
  let isLate = false;
  let emitted = Promise.resolve();

  function emitLatest(): void {
    isLate = false;
    timer = setTimeout(() => {
      timer = undefined;
      if (isLate) emitLatest();
    }, emitMs);
    const event = create(ToolProgressSchema, { callId, ...shown });
    // A failure has already aborted the call.
    emitted = emitted.then(() => emit(event)).catch(() => undefined);
  }

  return {
    shown,
    /** Replaces title or metadata; throws `ToolFailure` if they are too large for an event. */
    update(update: { title?: string; metadata?: JsonObject }): void {
      const size = Buffer.byteLength(JSON.stringify({ ...shown, ...update }));
      if (size > maxShownBytes) {
        throw new ToolFailure(
          `Title and metadata that the tool shows have ${size} bytes; at most ${maxShownBytes} are possible. Return the rest as output.`,
        );
      }
      Object.assign(shown, update);
      if (timer) isLate = true;
      else emitLatest();
    },
    /** Resolves when all that was shown is emitted. */
    async flush(): Promise<void> {
      clearTimeout(timer);
      if (isLate) emitLatest();
      await emitted;
    },
    /** Emits no more; the terminal part has the latest title and metadata. */
    stop(): void {
      clearTimeout(timer);
    },
  };
}
