import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isObject } from "../../core/json.ts";
import { rejected, type UseDecision } from "./delegate.ts";

/** Reads the outcome of a BeginCallResponse in proto JSON; undefined if the value is none, also if a field that counts is missing. */
export function readDecision(response: JsonValue | undefined): UseDecision | undefined {
  if (!isObject(response)) return undefined;
  const { begun, refused, waiting } = response;
  if ([begun, refused, waiting].filter((outcome) => outcome !== undefined).length !== 1) return undefined;
  if (isObject(begun)) return begunOf(begun);
  if (isObject(refused)) {
    const { reason, message = "" } = refused;
    const isRejected = reason === "TOOL_ERROR_REASON_REJECTED" || reason === rejected;
    return typeof message === "string"
      ? { case: "refused", value: { reason: isRejected ? rejected : 0, message } }
      : undefined;
  }
  if (!isObject(waiting)) return undefined;
  const { permissions = [] } = waiting;
  if (!Array.isArray(permissions)) return undefined;
  const ids = permissions.map((permission) => (isObject(permission) ? permission.id : undefined));
  if (!ids.every((id) => typeof id === "string")) return undefined;
  return { case: "waiting", value: { permissions: ids.map((id) => ({ id })) } };
}

/** Writes a decision so that `readDecision` returns it. */
export function writeDecision(decision: UseDecision): string {
  return JSON.stringify({ [decision.case]: decision.value });
}

function begunOf({ assignment, input }: JsonObject): UseDecision | undefined {
  if (typeof assignment !== "string" || !(input === undefined || isObject(input))) return undefined;
  return { case: "begun", value: { assignment, input } };
}
