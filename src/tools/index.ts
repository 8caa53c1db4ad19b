import type { Tool } from "../tool/tool.ts";
import { createBash } from "./bash.ts";
import { echo } from "./echo.ts";
import { read } from "./read.ts";
import type { Supervisor } from "./supervisor.ts";
import { webfetch } from "./webfetch.ts";
import { createWrite } from "./write.ts";

/** The tools that every replica has. */
export function builtInTools({ supervisor }: { supervisor: Supervisor }): Tool[] {
  return [createBash({ supervisor }), echo, read, webfetch, createWrite()];
}
