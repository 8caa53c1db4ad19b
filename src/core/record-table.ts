/** A table of records in the store. Every method that writes resolves when the change is durable and `current` returns it. */
export interface RecordTable<T extends { id: string }> {
  /** Returns the records as last read, always the same array until they change. */
  current(): readonly T[];
  /** Reads the records that other replicas may have changed. */
  refresh(): Promise<void>;
  /** Stores a record; it replaces one with the same ID. */
  put(record: T): Promise<void>;
  /**
   * Replaces a record by what `next` makes of the stored one, whatever writes it at the same time. Returns the new one;
   * undefined changes nothing.
   */
  update<R extends T | undefined>(id: string, next: (stored: T | undefined) => R): Promise<R>;
  /** Removes a record and returns it; undefined if there is none, or if another replica removed it. */
  remove(id: string): Promise<T | undefined>;
}
