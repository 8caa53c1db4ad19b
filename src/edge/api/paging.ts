import type { EdgeContext } from "./rpc.ts";

/** Fields of a request for a page of a list. */
interface PageRequest {
  pageSize: number;
  pageToken: string;
}

/** Returns the number of entries that a page may hold. */
export function pageLimit({ pageSize }: Pick<PageRequest, "pageSize">, { limits }: EdgeContext): number {
  return pageSize || limits.defaultPageSize;
}

/** Returns the bounds of a page of a list that goes from old to new. */
export function pageAfter(request: PageRequest, context: EdgeContext): { limit: number; after?: string } {
  return { limit: pageLimit(request, context), ...(request.pageToken !== "" && { after: request.pageToken }) };
}

/** Returns the bounds of a page of a list that goes from new to old. */
export function pageBefore(request: PageRequest, context: EdgeContext): { limit: number; before?: string } {
  return { limit: pageLimit(request, context), ...(request.pageToken !== "" && { before: request.pageToken }) };
}

/** Maximum number of entries on a page of a list in memory; also the default, since these lists had no pages at first. */
const maxListed = 500;

/**
 * Returns a page of a list in memory, in the order of unique keys. The token is a key, so entries that come or go between two
 * pages move no other one.
 */
export function pageByKey<Entry>(
  entries: readonly Entry[],
  keyOf: (entry: Entry, index: number) => string,
  { pageSize, pageToken }: PageRequest,
): { page: Entry[]; nextPageToken: string } {
  const rest = entries
    .map((entry, index) => ({ entry, key: keyOf(entry, index) }))
    .filter(({ key }) => key > pageToken)
    .toSorted((one, other) => (one.key < other.key ? -1 : 1));
  const page = rest.slice(0, pageSize || maxListed);
  return {
    page: page.map(({ entry }) => entry),
    nextPageToken: page.length < rest.length ? (page.at(-1)?.key ?? "") : "",
  };
}

/** Returns a key that sorts entries from new to old. */
export function newestFirstKey({ id, created }: { id: string; created: number }): string {
  return `${String(maxTime - Math.trunc(created)).padStart(16, "0")} ${id}`;
}

/** The last time of JavaScript, in ms since the epoch. */
const maxTime = 8_640_000_000_000_000;

/** Returns the token of the page after this one: the id of the last entry, or "" if the page is not full. */
export function nextPageToken(ids: readonly string[], { limit }: { limit: number }): string {
  return ids.length < limit ? "" : (ids.at(-1) ?? "");
}
