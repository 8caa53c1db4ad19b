import { distance } from "fastest-levenshtein";

/** The known words, the nearest first, that differ in no more than half of their letters; upper and lower case are the same. */
export function similar(word: string, known: readonly string[], most: number): string[] {
  return known
    .map((other) => ({ other, letters: distance(word.toLowerCase(), other.toLowerCase()) }))
    .filter(({ other, letters }) => letters <= Math.max(word.length, other.length) / 2)
    .sort((a, b) => a.letters - b.letters)
    .slice(0, most)
    .map(({ other }) => other);
}
