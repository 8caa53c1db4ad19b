import { distance } from "fastest-levenshtein";

/** The known words, the nearest first, that differ in no more than half of their letters; upper and lower case are the same. */
export function similar(word: string, known: readonly string[], most: number): string[] {
  const isSimilar = (other: string) =>
    distance(word.toLowerCase(), other.toLowerCase()) <= Math.max(word.length, other.length) / 2;
  return known
    .filter(isSimilar)
    .sort((a, b) => distance(word, a) - distance(word, b))
    .slice(0, most);
}
