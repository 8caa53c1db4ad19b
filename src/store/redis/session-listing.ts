import type { SessionStore } from "../../call/ports.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { type Listing, withPlaces } from "./listing.ts";
import { texts } from "./reply.ts";

/** Lists the ids of sessions, newest first, of one tree, of one owner, or of all. */
export function listSessionIds(
  { link, keys, listing }: { link: Link; keys: Keys; listing: Listing },
  { owner, root, limit }: Parameters<SessionStore["listSessions"]>[0],
  before: number | undefined,
): AsyncGenerator<string> {
  if (root !== undefined) return newestInTree(link, keys.tree(root).sessions, before);
  if (owner !== undefined) return newestOfOwner(link, keys.owned(owner), before);
  return listing.newest(before, Math.min(limit, maxSessionPage));
}

async function* newestInTree(link: Link, key: string, before: number | undefined): AsyncGenerator<string> {
  const max = before === undefined ? "+inf" : `(${before}`;
  yield* texts(await link.command("zrevrangebyscore", key, max, "-inf"));
}

async function* newestOfOwner(link: Link, key: string, before: number | undefined): AsyncGenerator<string> {
  for (let end = before; ; ) {
    const max = end === undefined ? "+inf" : `(${end}`;
    const found = await link.command("zrevrangebyscore", key, max, "-inf", "WITHSCORES", "LIMIT", 0, maxSessionPage);
    const page = withPlaces(texts(found));
    for (const { id } of page) yield id;
    if (page.length < maxSessionPage) return;
    end = page.at(-1)?.place;
  }
}

/** Sessions that are read at a time. */
export const maxSessionPage = 200;
