import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import { Shown } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { checkNumbers } from "./check-numbers.ts";
import { backoffMs, type ClientLink, resumeStream, untilAnswered, waitSignal } from "./resume-stream.ts";

/** Selects permission requests. */
export interface AskOptions {
  /** Limits them to this session and its descendants. Default: every session that the token may see. */
  sessionId?: string;
  /** Ends the stream. */
  signal?: AbortSignal;
}

/** An answer to a permission request, beside the reply. */
export interface AnswerOptions {
  /** For the model; only with `reject`. */
  message?: string;
  /** The offer to save; only with `always`. Default: the first one, which is the narrowest. */
  offerId?: string;
  /** Other arguments for the call; only with `once`. */
  input?: JsonObject;
  /** Values for each question of the request; only with `once`. */
  answers?: readonly (readonly string[])[];
  /** Answers also the open requests of the call that were opened together with this one. */
  wholeCall?: boolean;
  /** The part of the request that a person saw: all of `view` with the texts of its files, or less. Default: recorded as unknown. */
  shown?: "whole" | "partial";
}

/** The generated client that answers need. */
interface AskClients {
  readonly permissions: Client<typeof PermissionService>;
  readonly link: ClientLink;
}

/** Yields open permission requests as they come, across restarts of the service, each once. */
export async function* watchAsks(
  { permissions, link }: AskClients,
  { sessionId = "", signal: left }: AskOptions = {},
): AsyncGenerator<PermissionRequest> {
  const signal = waitSignal(link, left);
  let open = new Set<string>();
  let snapshot: Set<string> | undefined;
  const frames = resumeStream({
    start: { afterSeq: 0n, storeId: "" },
    signal,
    pauseMs: backoffMs,
    open() {
      // Each stream starts with all requests that are open: the others of an earlier stream are settled.
      snapshot = new Set();
      return permissions.watchPermissions({ sessionId }, { signal, timeoutMs: 0 });
    },
    isLast: () => false,
  });
  for await (const { event, snapshotEnd } of frames) {
    link.isReached = true;
    if (snapshotEnd && snapshot) {
      open = snapshot;
      snapshot = undefined;
    }
    if (event?.event.case === "permissionSettled") open.delete(event.event.value.permissionId);
    if (event?.event.case !== "permissionAsked") continue;
    const ask = event.event.value;
    snapshot?.add(ask.id);
    if (open.has(ask.id)) continue;
    open.add(ask.id);
    yield ask;
  }
}

/** Answers a permission request as it was shown. A lost reply is repeated until it is answered: its id makes that safe. */
export async function replyToAsk(
  { permissions, link }: AskClients,
  ask: Pick<PermissionRequest, "sessionId" | "id" | "digest">,
  reply: "once" | "always" | "reject",
  options: AnswerOptions = {},
): Promise<void> {
  const { answers, shown, ...rest } = options;
  checkNumbers("the input of the answer", rest.input);
  const response = {
    ...rest,
    ...(answers && { answers: answers.map((values) => ({ values: [...values] })) }),
    ...{ sessionId: ask.sessionId, permissionId: ask.id, expectedDigest: ask.digest, replyId: randomUUID() },
    reply: replies[reply],
    shown: shown === undefined ? Shown.UNKNOWN : shownValues[shown],
  };
  const signal = link.closed;
  await untilAnswered(link, signal, () => permissions.respondToPermission(response, { signal }));
}

const shownValues = { whole: Shown.WHOLE, partial: Shown.PARTIAL } as const;

const replies = {
  once: PermissionReply.ONCE,
  always: PermissionReply.ALWAYS,
  reject: PermissionReply.REJECT,
} as const;
