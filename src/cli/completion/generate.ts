/** Writes gen/completion: `npm run generate`. */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createProgram } from "../cli.ts";
import { completionScripts } from "./scripts.ts";

const folder = join(import.meta.dirname, "../../../gen/completion");
const context = {
  io: process,
  version: "",
  program: [],
  loadService: () => Promise.reject(new Error("the generator runs no command")),
  setExitCode: () => {},
};
const program = await createProgram(context, () => true);
await mkdir(folder, { recursive: true });
for (const [shell, write] of Object.entries(completionScripts))
  await writeFile(join(folder, `toolgate.${shell}`), write(program));
