import type { EdgeContext } from "./edge-context.ts";

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

/** Returns the token of the page after this one: the id of the last entry, or "" if the page is not full. */
export function nextPageToken(ids: readonly string[], { limit }: { limit: number }): string {
  return ids.length < limit ? "" : (ids.at(-1) ?? "");
}
