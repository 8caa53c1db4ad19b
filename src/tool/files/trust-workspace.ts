import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { digestSkills } from "../skills/find-skills.ts";
import { readSources } from "./sources.ts";
import { createTrust } from "./trust.ts";

/**
 * Trusts the code in a workspace's `.opencode` and its skills as they are now, or with `remove` no longer. Returns the files of
 * its tools and skills. A running service applies the change.
 */
export async function trustWorkspace(
  trustDirectory: string,
  directory: string,
  remove: boolean,
): Promise<{ directory: string; tools: string[]; skills: string[] }> {
  const trust = createTrust(trustDirectory);
  const codeDirectory = join(directory, ".opencode");
  const { entries, digest } = await readSources(codeDirectory, [codeDirectory]);
  if (remove) {
    await trust.remove(directory);
    return { directory, tools: [], skills: [] };
  }
  const skills = await digestSkills(directory);
  await trust.set(directory, digest, await policyDigestIn(codeDirectory), skills);
  return { directory, tools: entries.map(({ path }) => join(".opencode", path)), skills: Object.keys(skills).sort() };
}

/** Returns the SHA-256 of the policy file in a workspace's `.opencode`; undefined if there is none. */
export async function policyDigestIn(codeDirectory: string): Promise<string | undefined> {
  const text = await readFile(join(codeDirectory, "config.toml")).catch(() => undefined);
  return text && createHash("sha256").update(text).digest("hex");
}
