import type { AuditEntry } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { auditEntry } from "../audit.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { bytes, list, number, text } from "./reply.ts";

/** Makes the function that reads the chain of decisions of a tree; the scripts write it. */
export function createAudit({ link, keys }: { link: Link; keys: Keys }) {
  return {
    async list({ root, afterSeq, limit }: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]> {
      const from = `${afterSeq + 1}-0`;
      const found = list(await link.command("xrange", keys.tree(root).audit, from, "+", "COUNT", limit));
      return found.map((entry) => {
        const [id, fields] = list(entry);
        const [, time, , previous, , hash, , content] = list(fields);
        return auditEntry({
          seq: Number.parseInt(text(id), 10),
          time: number(time),
          rootSessionId: root,
          previous: text(previous),
          hash: text(hash),
          content: bytes(content) ?? new Uint8Array(),
        });
      });
    },
  };
}
