import type { AuditEntry } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { auditEntry } from "../audit.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { createListing } from "./listing.ts";
import { bytes, number, replyList, text } from "./reply.ts";

/** The audit of a store. */
export type RedisAudit = ReturnType<typeof createRedisAudit>;

/** Reads the chain of decisions of a tree, which the scripts write, and lists removed trees whose chain is retained. */
export function createRedisAudit({ link, keys }: { link: Link; keys: Keys }) {
  const removed = createListing({ link, keys, name: "audits" });

  return {
    /** Lists a removed tree, whose audit is retained. */
    listRemoved: (root: string) => removed.enter(root),

    /** Lists the roots of removed trees; see the port. */
    async gone({ before, limit }: { before?: string; limit: number }): Promise<string[]> {
      const place = before === undefined ? undefined : await removed.placeOf(before);
      const roots: string[] = [];
      for await (const root of removed.newest(place, limit)) {
        roots.push(root);
        if (roots.length === limit) break;
      }
      return roots;
    },

    /** Trims the audits of removed trees, and removes those without one from the list. */
    async sweep(trim: (root: string) => Promise<void>): Promise<void> {
      for await (const roots of removed.all()) {
        for (const root of roots) {
          const { audit } = keys.tree(root);
          await trim(root);
          if (number(await link.command("xlen", audit)) > 0) continue;
          await link.command("unlink", audit);
          await removed.remove(root);
        }
      }
    },

    async list({ root, afterSeq, limit }: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]> {
      const from = `${afterSeq + 1}-0`;
      const found = replyList(await link.command("xrange", keys.tree(root).audit, from, "+", "COUNT", limit));
      return found.map((entry) => {
        const [id, fields] = replyList(entry);
        const [, time, , previous, , hash, , content] = replyList(fields);
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
