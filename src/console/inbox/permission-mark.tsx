import { visibleText } from "../parts/visible-text.ts";
import type { InboxAsk } from "./ask-list.ts";

/** The distinct kinds of permission that a call asks for: a command first, the way out of the workspace, of which the risk speaks, last. */
export function kindsOf(asks: readonly InboxAsk[]): readonly string[] {
  const rank = (kind: string) => (kind === "bash" ? 0 : kind === "external_directory" ? 2 : 1);
  return [...new Set(asks.map(({ request }) => request.permission))].toSorted((a, b) => rank(a) - rank(b));
}

/** A kind of permission as a coloured mark. */
export function PermissionMark({ kind }: { kind: string }) {
  return (
    <span class="mark" data-kind={colours.get(kind) ?? "other"}>
      {visibleText(kind).replaceAll("_", " ")}
    </span>
  );
}

const colours = new Map([
  ["bash", "command"],
  ["edit", "change"],
  ["read", "look"],
  ["list", "look"],
  ["glob", "look"],
  ["grep", "look"],
  ["webfetch", "web"],
  ["websearch", "web"],
  ["codesearch", "web"],
  ["external_directory", "beyond"],
  ["doom_loop", "beyond"],
  ["question", "question"],
  ["skill", "look"],
]);
