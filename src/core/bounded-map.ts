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

/** Issuers name as many principals as they like. */
const maxPrincipals = 1_000;
/** A call lives for a day at most, so what a principal left an hour after that is of no use. */
const maxUnusedMs = 25 * 3_600_000;

/** Makes something for each principal, when it is first wanted; that of the principal that is used least recently is forgotten first. */
export function forEachPrincipal<T>(make: () => T, now: () => number): (principalId: string) => T {
  const made = new Map<string, { value: T; used: number }>();
  return (principalId) => {
    const known = made.get(principalId) ?? { value: make() };
    setNewest(made, principalId, { ...known, used: now() }, maxPrincipals);
    for (const [id, { used }] of made) {
      if (now() - used < maxUnusedMs) break;
      made.delete(id);
    }
    return known.value;
  };
}
