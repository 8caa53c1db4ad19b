import { hash } from "node:crypto";
import type { Grant } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { CallRef } from "../core/call-ref.ts";

// The uses of a grant with a limit are a text with one name for each call, so that a call that starts again counts once.

/** Length of the name of a use, in which their number follows from the length of the text. */
export const useLength = 17;

/** Returns the name of the use of a call. */
export const useOf = ({ sessionId, callId }: CallRef): string =>
  ` ${hash("sha256", JSON.stringify([sessionId, callId]), "base64url").slice(0, useLength - 1)}`;

/** Returns the uses with the one of a call; undefined if none is left for it. */
export function withUse(uses: string, use: string, times: number): string | undefined {
  if (uses.includes(use)) return uses;
  return uses.length < times * useLength ? uses + use : undefined;
}

/** Returns a grant with the number of calls that it still covers, the one of `use` included if it has taken a use. */
export function withLeft(grant: Grant, uses: string, use?: string): Grant {
  if (grant.times === 0) return grant;
  const others = use === undefined ? uses : uses.replace(use, "");
  return { ...grant, left: Math.max(0, grant.times - others.length / useLength) };
}

/** Checks that a grant covers a further call: it was not revoked, has not expired, and has a use left. */
export const isLive = ({ revoked, expires, times, left }: Grant, now: number): boolean =>
  revoked === 0 && (expires === 0 || expires > now) && (times === 0 || left > 0);
