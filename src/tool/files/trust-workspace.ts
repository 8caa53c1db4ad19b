import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { readSources } from "./sources.ts";
import { createTrust } from "./trust.ts";

/**
 * Trusts the code in a workspace's `.opencode` as it is now, or with `remove` no longer. Returns the files of its tools. A
 * running service applies the change.
 */
export async function trustWorkspace(
  trustDirectory: string,
  directory: string,
  remove: boolean,
): Promise<{ directory: string; tools: string[] }> {
  const trust = createTrust(trustDirectory);
  const codeDirectory = join(directory, ".opencode");
  const { entries, digest } = await readSources(codeDirectory, [codeDirectory]);
  if (remove) await trust.remove(directory);
  else await trust.set(directory, digest, await policyDigestIn(codeDirectory));
  return { directory, tools: remove ? [] : entries.map(({ path }) => join(".opencode", path)) };
}

/** Returns the SHA-256 of the policy file in a workspace's `.opencode`; undefined if there is none. */
export async function policyDigestIn(codeDirectory: string): Promise<string | undefined> {
  const text = await readFile(join(codeDirectory, "config.toml")).catch(() => undefined);
  return text && createHash("sha256").update(text).digest("hex");
}
