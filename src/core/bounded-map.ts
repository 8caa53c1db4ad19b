/** Entries by key, of which the oldest are forgotten when they are too many, or too long together. */
export interface BoundedMap<V> {
  get(key: string): V | undefined;
  /** Sets an entry, which is then the newest; one that is too long by itself is forgotten at once. */
  set(key: string, value: V): void;
  delete(key: string): void;
}

/** Creates an empty map; `lengthOf` measures an entry. */
export function createBoundedMap<V>(
  { maxCount, maxLength }: { maxCount: number; maxLength: number },
  lengthOf: (value: V) => number,
): BoundedMap<V> {
  const entries = new Map<string, { value: V; length: number }>();
  let total = 0;

  function drop(key: string): void {
    total -= entries.get(key)?.length ?? 0;
    entries.delete(key);
  }

  return {
    get: (key) => entries.get(key)?.value,
    set(key, value) {
      drop(key);
      const length = key.length + lengthOf(value);
      entries.set(key, { value, length });
      total += length;
      for (const oldest of entries.keys()) {
        if (entries.size <= maxCount && total <= maxLength) return;
        drop(oldest);
      }
    },
    delete: drop,
  };
}

/** Sets an entry, which is then the newest, and forgets the oldest of more than `maxCount`. */
export function setNewest<K, V>(entries: Map<K, V>, key: K, value: V, maxCount: number): void {
  entries.delete(key);
  entries.set(key, value);
  for (const oldest of entries.keys()) {
    if (entries.size <= maxCount) return;
    entries.delete(oldest);
  }
}

/** Makes something for each principal, when it is first wanted. */
export function forEachPrincipal<T>(make: () => T): (principalId: string) => T {
  const made = new Map<string, T>();
  return (principalId) => {
    const known = made.get(principalId) ?? make();
    made.set(principalId, known);
    return known;
  };
}
