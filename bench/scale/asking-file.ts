import { writeFile } from "node:fs/promises";
import { join } from "node:path";

/** Writes a small file whose name `read` asks about, and returns that name: the cheapest call that waits for a person. */
export async function createAskingFile(workspace: string): Promise<string> {
  await writeFile(join(workspace, "asking.env"), "ASKED=yes\n");
  return "asking.env";
}
