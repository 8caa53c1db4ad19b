import { create, type JsonObject } from "@bufbuild/protobuf";
import { type ToolProgress, ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";

/** Title and metadata that a running tool shows: the latest is told, at most every 50 ms. */
export function createProgress(callId: string, tell: (event: ToolProgress) => Promise<void>) {
  const shown: { title?: string; metadata?: JsonObject } = {};
  let timer: NodeJS.Timeout | undefined;
  return {
    shown,
    update(update: { title?: string; metadata?: JsonObject }): void {
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
