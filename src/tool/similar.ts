import { distance } from "fastest-levenshtein";

/** Returns the `max` known words nearest to a word, nearest first, that differ in at most half of their letters; ignores case. */
export function similar(word: string, known: readonly string[], max: number): string[] {
  return known
    .map((other) => ({ other, letters: distance(word.toLowerCase(), other.toLowerCase()) }))
    .filter(({ other, letters }) => letters <= Math.max(word.length, other.length) / 2)
    .sort((a, b) => a.letters - b.letters)
    .slice(0, max)
    .map(({ other }) => other);
}
