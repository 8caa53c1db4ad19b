/** The line that installs Bun where the service finds it. */
export const needsBun = "it needs Bun: install it (npm install -g bun), or name it in toolgate.toml as [tools] bun";

/** Returns the text of an error, at most as long as a message to the service may be, with the next step where it is known. */
export function messageOf(error: unknown): string {
  const text = (error instanceof Error ? error.message : String(error)) || "it failed without a message";
  return /^Bun is not defined\b|^Can't find variable: Bun\b/.test(text)
    ? `${text}: ${needsBun}`
    : text.slice(0, 16_000);
}
