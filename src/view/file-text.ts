import type { ReadBoundFileResponse } from "../../gen/opencode/tool/v1/permission_service_pb.ts";

/** The text of a file that a request names, as far as a client can show it. */
export interface FileText {
  text: string;
  /** Why it is not all of the text; empty if it is. */
  unread: string;
}

/** The text of a file that was read, which may be only its beginning. */
export function fileText({ text, truncated, binary }: Omit<ReadBoundFileResponse, "$typeName">): FileText {
  if (binary) return { text: "", unread: "it is not text" };
  return { text, unread: truncated ? "it is too long" : "" };
}

/** Words for a text that is not on the screen, at least not all of it. */
export const unreadWords = (unread: string) => `its text is not shown: ${unread}`;
