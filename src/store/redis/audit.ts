import type { AuditEntry } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { auditEntry } from "../audit.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { createListing } from "./listing.ts";
import { bytes, number, replyList, text } from "./reply.ts";

/** The audit of a store. */
export type RedisAudit = ReturnType<typeof createRedisAudit>;

/** Reads the chain of decisions of a tree, which the scripts write, and knows the trees of which only that is left. */
export function createRedisAudit({ link, keys }: { link: Link; keys: Keys }) {
  const gone = createListing({ link, keys, name: "audits" });

  return {
    /** Remembers a tree that goes: its audit stays. */
    keep: (root: string) => gone.enter(root),

    /** See the port. */
    async gone({ before, limit }: { before?: string; limit: number }): Promise<string[]> {
      const place = before === undefined ? undefined : await gone.placeOf(before);
      const roots: string[] = [];
      for await (const root of gone.newest(place, limit)) {
        roots.push(root);
        if (roots.length === limit) break;
      }
      return roots;
    },

    /** Forgets those of whose audit nothing is left. */
    async sweep(): Promise<void> {
      for await (const roots of gone.all()) {
        for (const root of roots) {
          if ((await link.command("exists", keys.tree(root).audit)) === 0) await gone.remove(root);
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
