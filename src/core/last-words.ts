/** Creates a buffer of the end of what a program prints for people. */
export function createLastWords(maxWords = 4_096): { add(text: string): void; text(): string } {
  const words: string[] = [];
  return {
    add(text) {
      words.push(text.slice(-maxWords));
      while (words.length > 1 && words.reduce((sum, { length }) => sum + length, 0) > 2 * maxWords) words.shift();
    },
    text: () => words.join("").slice(-maxWords).trim(),
  };
}
