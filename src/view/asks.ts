import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";

/**
 * The time that an ask has to be visible before it can be answered, so that a key press or click that was meant for the
 * previous screen has no effect.
 */
export const inertMs = 500;

/** The time that a settled ask stays visible. */
export const farewellMs = 4_000;

/** Identifies the call of an ask: all asks of one call are shown as one question. */
export function callKeyOf({ id, sessionId, tool }: Pick<PermissionRequest, "id" | "sessionId" | "tool">): string {
  return `${sessionId} ${tool?.callId ?? id}`;
}

/** The extent of a single approval of a directory, of which the call may name one file; empty for other requests. */
export function onceWords({ permission }: Pick<PermissionRequest, "permission">): string {
  return permission === "external_directory" ? "approved once, only this call may reach it; later calls ask again" : "";
}

/** The directory in which a command runs; empty if it is not known, or the request is not for a command. */
export function directoryWords({ permission, metadata }: Pick<PermissionRequest, "permission" | "metadata">): string {
  const directory = permission === "bash" ? metadata?.workdir : undefined;
  if (typeof directory !== "string") return "";
  if (directory === ".") return "in the workspace";
  return directory.startsWith("/") ? `in ${directory}, outside the workspace` : `in ${directory}, inside the workspace`;
}

/** The number of identical calls in a row, such as `the same call, 3 times in a row`; empty unless that is why it asks. */
export function repetitionWords({ permission, metadata }: Pick<PermissionRequest, "permission" | "metadata">): string {
  const repeats = permission === "doom_loop" ? Number(metadata?.repeats) : 0;
  return repeats > 0 ? `the same call, ${repeats + 1} times in a row` : "";
}
