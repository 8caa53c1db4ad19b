/** The name of an enum value in words: of `ToolErrorReason`, EXECUTOR_LOST is `executor lost`. */
export function enumWord(values: Readonly<Record<string, number>>, value: number): string {
  const name = Object.keys(values).find((key) => values[key] === value);
  return name?.toLowerCase().replaceAll("_", " ") ?? `unknown (${value})`;
}

/** The text with an upper-case first letter. */
export function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A command line that can be pasted into a shell: each word is quoted if it must be. */
export function shellCommand(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}
