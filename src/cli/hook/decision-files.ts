import { createHash, createHmac } from "node:crypto";
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { fromJsonString, toJsonString } from "@bufbuild/protobuf";
import { BeginCallResponseSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { DecisionMemory } from "../../agents/hooks/delegate.ts";

/** Returns the directory in which the hooks of one user remember decisions between their processes. */
export function decisionDirectory(env: NodeJS.ProcessEnv): string {
  return join(env.HOME || homedir(), ".local", "state", "toolgate", "decisions");
}

/**
 * Creates a memory in files that only this user may read; when they are many, those older than a day are removed. Each file begins
 * with a MAC under the connector's token: the environment may name another directory, but a file there is not taken for a decision.
 */
export function createDecisionFiles(directory: string, token: string): DecisionMemory {
  const fileOf = (key: string) => join(directory, createHash("sha256").update(key).digest("hex"));
  const macOf = (key: string, text: string) =>
    createHmac("sha256", token)
      .update(JSON.stringify([key, text]))
      .digest("hex");
  return {
    async put(key, outcome) {
      await makeDirectory(directory);
      await removeOld(directory);
      const file = fileOf(key);
      const next = `${file}.${process.pid}.new`;
      const text = toJsonString(BeginCallResponseSchema, {
        $typeName: "opencode.tool.v1.BeginCallResponse",
        outcome,
        storeId: "",
      });
      await writeFile(next, `${macOf(key, text)}\n${text}`, { mode: 0o600 });
      await rename(next, file);
    },
    async get(key) {
      const file = fileOf(key);
      try {
        const { mtimeMs } = await stat(file);
        const [mac, text = ""] = (await readFile(file, "utf8")).split("\n", 2);
        if (mac !== macOf(key, text)) return undefined;
        const { outcome } = fromJsonString(BeginCallResponseSchema, text);
        return outcome.case === undefined ? undefined : { decision: outcome, ageMs: Date.now() - mtimeMs };
      } catch {
        // Without a decision the use is asked again, or its result is not reported.
        return undefined;
      }
    },
    remove: (key) => rm(fileOf(key), { force: true }),
  };
}

/** Creates a directory and those above it. `recursive` of Node never ends below `/proc`, where it can create none. */
async function makeDirectory(directory: string): Promise<void> {
  const make = () =>
    mkdir(directory, { mode: 0o700 }).catch((error) => {
      // Another hook can make it at the same time.
      if (error.code !== "EEXIST") throw error;
    });
  try {
    await make();
  } catch (error) {
    const isMissing = error instanceof Error && "code" in error && error.code === "ENOENT";
    if (!isMissing || dirname(directory) === directory) throw error;
    await makeDirectory(dirname(directory));
    await make();
  }
}

async function removeOld(directory: string): Promise<void> {
  const names = await readdir(directory);
  if (names.length < maxFiles) return;
  for (const name of names) {
    const file = join(directory, name);
    const found = await stat(file).catch(() => undefined);
    if (found !== undefined && Date.now() - found.mtimeMs > maxAgeMs) await rm(file, { force: true });
  }
}

const maxAgeMs = 86_400_000;
/** Number of files below which the old ones are left: a reported use removes its own. */
const maxFiles = 256;
