import type { Requester } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { TextFilter } from "./outcomes.ts";

/**
 * The agent that asks: by its own description, such as `Claude Code in ~/shop, reviewer`, otherwise by its name in the
 * configuration.
 */
export function requesterWords(
  { agent, requester }: { agent: string; requester?: Requester | undefined },
  filter: TextFilter,
): string {
  if (requester === undefined) return filter(agent);
  const { kind, place, subagent } = requester;
  const where = place === "" ? "" : ` in ${filter(shortPlace(place))}`;
  return `${names.get(kind) ?? filter(kind)}${where}${subagent === "" ? "" : `, ${filter(subagent)}`}`;
}

/** Shortens the home directory, which is usually that of another machine or user than the reader's. */
function shortPlace(place: string): string {
  return place.replace(/^(\/root|\/(?:home|Users)\/[^/]+)(?=\/|$)/, "~");
}

const names: ReadonlyMap<string, string> = new Map([
  ["claude", "Claude Code"],
  ["claude-code", "Claude Code"],
  ["codex", "Codex"],
  ["gemini", "Gemini CLI"],
  ["copilot", "GitHub Copilot CLI"],
]);
