import { create, type JsonObject } from "@bufbuild/protobuf";
import { type ToolProgress, ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { ToolFailure } from "../tool/errors.ts";

/** It is told again with the end, which has to fit into an event with all else. */
const maxShown = 262_144;

/** Title and metadata that a running tool shows: the latest is told, at most every 50 ms. */
export function createProgress(callId: string, tell: (event: ToolProgress) => Promise<void>) {
  const shown: { title?: string; metadata?: JsonObject } = {};
  let timer: NodeJS.Timeout | undefined;
  return {
    shown,
    /** Throws `ToolFailure` for what no event could hold. */
    update(update: { title?: string; metadata?: JsonObject }): void {
      const size = Buffer.byteLength(JSON.stringify({ ...shown, ...update }));
      if (size > maxShown) {
        throw new ToolFailure(
          `Title and metadata that the tool shows have ${size} bytes; at most ${maxShown} are possible. Return the rest as output.`,
        );
      }
      Object.assign(shown, update);
      timer ??= setTimeout(() => {
        timer = undefined;
        // A failure to tell has aborted the call already.
        tell(create(ToolProgressSchema, { callId, ...shown })).catch(() => undefined);
      }, 50);
    },
    /** What was not told yet is in the terminal state. */
    stop(): void {
      clearTimeout(timer);
    },
  };
}
