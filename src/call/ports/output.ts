/** Whole outputs, by id, in their session tree. Bytes are durable before the event that names them. */
export interface OutputStore {
  /** Appends bytes. Once it resolves the caller may reuse `data`. */
  append(root: string, id: string, data: Uint8Array): Promise<void>;
  /** Reads a range; undefined if no output has that id. */
  read(
    root: string,
    id: string,
    offset: number,
    limit: number,
  ): Promise<{ data: Uint8Array; total: number } | undefined>;
  remove(root: string, id: string): Promise<void>;
}
