import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type AcceptedSource,
  SourceAcceptance,
  type SourceToolSchema,
} from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { visible } from "../../core/visible.ts";
import type { McpDefinition } from "./mcp-definition.ts";

/** Writes the change of a text as a unified diff; `before` is undefined for a new one. */
export type WriteDiff = (name: string, before: string | undefined, after: string) => string;

/** Returns the function that compares a tool with what was accepted. */
export function acceptanceOf(record: AcceptedSource | undefined) {
  return ({ original, text }: McpDefinition): SourceAcceptance => {
    const before = acceptedText(record, original);
    if (before === undefined) return SourceAcceptance.NEW;
    return before === text ? SourceAcceptance.ACCEPTED : SourceAcceptance.CHANGED;
  };
}

/** Compares what a server offers with what was accepted. */
export function compareTools(
  offered: readonly McpDefinition[],
  record: AcceptedSource | undefined,
  { problems, writeDiff }: { problems: ReadonlyMap<string, string>; writeDiff: WriteDiff },
): MessageInitShape<typeof SourceToolSchema>[] {
  const acceptance = acceptanceOf(record);
  const described = (name: string, before: string | undefined, after: string | undefined) => {
    const [accepted, definition] = [shownForm(before), shownForm(after)];
    const lines = (text: string) => (text === "" ? "" : `${text}\n`);
    return {
      ...{ name, accepted, definition },
      diff: accepted === definition ? "" : writeDiff(name, lines(accepted) || undefined, lines(definition)),
    };
  };
  const present = offered.map((definition) => ({
    ...described(definition.name, acceptedText(record, definition.original), definition.text),
    acceptance: acceptance(definition),
    problem: problems.get(definition.name) ?? "",
  }));
  const originals = new Set(offered.map(({ original }) => original));
  const gone = Object.entries(record?.definitions ?? {})
    .filter(([original]) => !originals.has(original))
    .map(([original, text]) => ({ ...described(original, text, undefined), acceptance: SourceAcceptance.GONE }));
  return [...present, ...gone];
}

/** Returns the accepted definition of a tool. A tool may have any name, also that of a method of objects. */
function acceptedText(record: AcceptedSource | undefined, original: string): string | undefined {
  return record && Object.hasOwn(record.definitions, original) ? record.definitions[original] : undefined;
}

/** Indents canonical JSON, with invisible characters escaped, for people. */
function shownForm(text = ""): string {
  return text === "" ? "" : visible(JSON.stringify(JSON.parse(text), null, 2));
}
