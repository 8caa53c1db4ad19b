import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import * as z from "zod";
import { isObject } from "../../../core/json.ts";

/** A use of a tool by an ACP agent, as far as the agent has described it. */
export interface AcpToolCall {
  readonly id: string;
  readonly kind: string;
  readonly title: string;
  readonly name: string;
  readonly status: string;
  readonly rawInput: JsonObject;
  readonly rawOutput: JsonValue | undefined;
  readonly changes: readonly { path: string; oldText?: string; newText: string }[];
  /** Texts for people; content of unknown form as JSON. */
  readonly content: readonly string[];
  readonly locations: readonly string[];
}

const optionalText = z.string().nullish().catch(undefined);

/** Fields of `tool_call`, `tool_call_update` and a permission request's `toolCall`. Fields of a wrong type count as absent. */
export const toolCallUpdate = z.object({
  toolCallId: z.string().min(1).max(512),
  kind: optionalText,
  title: optionalText,
  name: optionalText,
  status: optionalText,
  content: z.array(z.unknown()).nullish().catch(undefined),
  locations: z.array(z.unknown()).nullish().catch(undefined),
  rawInput: z.unknown().optional(),
  rawOutput: z.unknown().optional(),
});

/** An update of a tool call. */
export type AcpToolCallUpdate = z.output<typeof toolCallUpdate>;

/** Applies an update: the fields that it has replace what was known. */
export function updateToolCall(before: AcpToolCall | undefined, update: AcpToolCallUpdate): AcpToolCall {
  const { toolCallId: id, content, locations, rawInput, rawOutput } = update;
  return {
    id,
    kind: update.kind ?? before?.kind ?? "other",
    title: update.title ?? before?.title ?? "",
    name: update.name ?? before?.name ?? "",
    status: update.status ?? before?.status ?? "pending",
    rawInput: isGiven(rawInput) ? objectOf(rawInput) : (before?.rawInput ?? {}),
    rawOutput: isGiven(rawOutput) ? (rawOutput as JsonValue) : before?.rawOutput,
    changes: content ? content.flatMap(changeIn) : (before?.changes ?? []),
    content: content ? content.flatMap(textIn) : (before?.content ?? []),
    locations: locations ? locations.flatMap(pathIn) : (before?.locations ?? []),
  };
}

/**
 * Adds a permission request to what earlier updates said: a request may hold less than they, such as a title alone. Its fields win,
 * and a path that either names counts.
 */
export function requestedCall(known: AcpToolCall | undefined, request: AcpToolCallUpdate): AcpToolCall {
  const asked = updateToolCall(known, request);
  if (known === undefined) return asked;
  return {
    ...asked,
    rawInput: { ...known.rawInput, ...asked.rawInput },
    changes: asked.changes.length > 0 ? asked.changes : known.changes,
    content: asked.content.length > 0 ? asked.content : known.content,
    locations: [...new Set([...known.locations, ...asked.locations])],
  };
}

/** Returns the tool and the input of the delegated call for a permission request. */
export function delegatedUse({ kind, title, name, rawInput, locations, changes, content }: AcpToolCall): {
  tool: string;
  input: JsonObject;
} {
  const input = {
    title,
    ...(name !== "" && { name }),
    ...(Object.keys(rawInput).length > 0 && { rawInput }),
    ...(locations.length > 0 && { locations: [...locations] }),
    ...(changes.length > 0 && { changes: changes.map((change) => ({ ...change })) }),
    ...(content.length > 0 && { content: [...content] }),
  };
  return { tool: toolKinds.has(kind) ? kind : "other", input };
}

/** Checks whether an agent runs another input than it asked about: a field that both have differs. */
export function runsOtherInput(asked: JsonObject, now: JsonObject): boolean {
  return Object.entries(now).some(
    ([field, value]) => Object.hasOwn(asked, field) && JSON.stringify(asked[field]) !== JSON.stringify(value),
  );
}

/** The kinds of tools of ACP v1. */
const toolKinds: ReadonlySet<string> = new Set([
  ...["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"],
]);

const isGiven = (value: unknown) => value !== undefined && value !== null;

function objectOf(value: unknown): JsonObject {
  return isObject(value) ? (value as JsonObject) : { value: value as JsonValue };
}

function changeIn(item: unknown): { path: string; oldText?: string; newText: string }[] {
  if (!isObject(item) || item.type !== "diff") return [];
  const { path, oldText, newText } = item;
  if (typeof path !== "string" || typeof newText !== "string") return [];
  return [{ path, newText, ...(typeof oldText === "string" && { oldText }) }];
}

function textIn(item: unknown): string[] {
  if (changeIn(item).length > 0) return [];
  const inner = isObject(item) && item.type === "content" ? item.content : undefined;
  if (isObject(inner) && inner.type === "text" && typeof inner.text === "string") return [inner.text];
  return [JSON.stringify(item)];
}

function pathIn(item: unknown): string[] {
  return isObject(item) && typeof item.path === "string" && item.path !== "" ? [item.path] : [];
}
