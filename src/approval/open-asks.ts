import type { AskRecord, PermissionStore } from "./ports.ts";

const pageSize = 500;

/** Reads every open ask of a session tree. */
export async function allOpenAsks(store: PermissionStore, root: string | undefined): Promise<AskRecord[]> {
  const open: AskRecord[] = [];
  for (;;) {
    const after = open.at(-1)?.request.id;
    const page = await store.openAsks({ ...(root && { root }), ...(after && { after }), limit: pageSize });
    open.push(...page);
    if (page.length < pageSize) return open;
  }
}

/**
 * Reads a page of the open asks that `sees` admits, oldest first; `next` is the cursor of the following page. Reads as many as are
 * wanted, and more at a time only for a viewer who does not see all of them.
 */
export async function listOpenAsks(
  store: PermissionStore,
  filter: { root?: string; after?: string; limit: number; sees(ask: AskRecord): Promise<boolean> },
): Promise<{ asks: AskRecord[]; next?: string }> {
  const asks: AskRecord[] = [];
  let after = filter.after;
  for (let limit = Math.min(filter.limit, pageSize); ; limit = pageSize) {
    const page = await store.openAsks({ ...(filter.root && { root: filter.root }), ...(after && { after }), limit });
    for (const ask of page) {
      if (await filter.sees(ask)) asks.push(ask);
      if (asks.length === filter.limit) return { asks, next: ask.request.id };
    }
    after = page.at(-1)?.request.id;
    if (page.length < limit) return { asks };
  }
}
