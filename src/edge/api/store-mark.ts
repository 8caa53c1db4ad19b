import type { StoreMembership } from "../../call/ports.ts";

/** Returns the store's id for the first message of a stream and "" for the others. */
export function createStoreMark({ storeId }: Pick<StoreMembership, "storeId">): () => string {
  let next = storeId;
  return () => {
    const mark = next;
    next = "";
    return mark;
  };
}
