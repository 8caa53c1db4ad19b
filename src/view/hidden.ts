import type { HiddenPaths } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { countOf } from "./quantities.ts";

/** Paths that a command does not see, such as `12 paths hidden: .env, secrets/, …`; empty if it sees everything. */
export function hiddenWords(hidden: HiddenPaths | undefined): string {
  if (hidden === undefined || hidden.count === 0) return "";
  const { count, paths } = hidden;
  return `${countOf(count, "path")} hidden: ${[...paths, ...(count > paths.length ? ["…"] : [])].join(", ")}`;
}
