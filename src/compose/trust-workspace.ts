import { join } from "node:path";
import { readSources } from "../bodies/processes/sources.ts";
import { createTrust } from "../bodies/processes/trust.ts";
import { policyDigestIn } from "../bodies/processes/workspace-policy.ts";
import { digestSkills } from "../bodies/skills/find-skills.ts";

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
