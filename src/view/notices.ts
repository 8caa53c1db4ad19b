import { type Channel, NoticeState } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { momentOf } from "./quantities.ts";

/** The state of a channel at the replica that answered, by its last attempt. */
export function channelState({ disabled, lastAccepted, lastFailed }: Channel) {
  if (disabled) return "disabled";
  if (lastFailed > lastAccepted) return "failing";
  return lastAccepted > 0 ? "working" : "not used yet";
}

/** What a channel sends, how often it did, and what waits for it. */
export function channelFacts({ content, sent, updated, dead, waiting, oldest }: Channel): string {
  const shows = { none: "shows the link only", risk: "shows the risks", full: "shows the request" }[content] ?? content;
  const waits = waiting > 0 ? [`${waiting} waiting since ${momentOf(oldest)}`] : [];
  return [shows, `${sent} sent, ${updated} with the outcome, ${dead} not delivered`, ...waits].join("; ");
}

/** States of a notice in words. */
export const noticeWords: Readonly<Record<number, string>> = {
  [NoticeState.UNSPECIFIED]: "unknown",
  [NoticeState.OPENED]: "to be sent",
  [NoticeState.SENT]: "sent",
  [NoticeState.SETTLED]: "outcome to be sent",
  [NoticeState.CLOSED]: "ended",
  [NoticeState.DEAD]: "not delivered",
};
