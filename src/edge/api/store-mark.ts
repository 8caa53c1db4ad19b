/** Returns a store's id for the first message of a stream and "" for the others. */
export function createStoreMark(storeId: string): () => string {
  let next = storeId;
  return () => {
    const mark = next;
    next = "";
    return mark;
  };
}
