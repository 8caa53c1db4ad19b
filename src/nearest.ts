/** The known word that takes the fewest letters inserted, removed or replaced. */
export function nearest(word: string, known: readonly string[]): string {
  const [first = ""] = byDistance(word, known);
  return first;
}

/** The known words, the nearest first, that differ in no more than half of their letters; upper and lower case are the same. */
export function similar(word: string, known: readonly string[], most: number): string[] {
  const isSimilar = (other: string) =>
    distance(word.toLowerCase(), other.toLowerCase()) <= Math.max(word.length, other.length) / 2;
  return byDistance(word, known.filter(isSimilar)).slice(0, most);
}

function byDistance(word: string, known: readonly string[]): string[] {
  return known.toSorted((a, b) => distance(word, a) - distance(word, b));
}

function distance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, index) => index);
  for (const [i, letter] of [...from].entries()) {
    const next = [i + 1];
    for (const [j, other] of [...to].entries()) {
      const replaced = (row[j] ?? 0) + (letter === other ? 0 : 1);
      next.push(Math.min(replaced, (row[j + 1] ?? 0) + 1, (next[j] ?? 0) + 1));
    }
    row = next;
  }
  return row[to.length] ?? 0;
}
