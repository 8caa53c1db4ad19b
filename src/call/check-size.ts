import type { JsonValue } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../core/request-error.ts";

/** Refuses a JSON value of a request that is larger than `maxBytes`. */
export function checkSize(field: string, value: JsonValue | undefined, maxBytes: number): void {
  if (value === undefined) return;
  const size = Buffer.byteLength(JSON.stringify(value));
  if (size <= maxBytes) return;
  throw new RequestError(
    ErrorReason.INVALID_MESSAGE,
    `${field} is ${size} bytes as JSON, over the limit of ${maxBytes}`,
    { field },
  );
}

const maxKeys = 10_000;
const maxDepth = 100;

/** Refuses a JSON value with too many keys or too much nesting, before anything else looks at it. */
export function checkKeys(field: string, value: JsonValue | undefined): void {
  let keys = 0;
  const ahead = [{ value, depth: 0 }];
  for (let next = ahead.pop(); next; next = ahead.pop()) {
    if (typeof next.value !== "object" || next.value === null) continue;
    const { depth } = next;
    const values = Object.values(next.value);
    keys += values.length;
    if (keys > maxKeys || depth > maxDepth) {
      const limit = keys > maxKeys ? `more than ${maxKeys} keys` : `more than ${maxDepth} levels`;
      throw new RequestError(ErrorReason.INVALID_MESSAGE, `${field} has ${limit}`, { field });
    }
    for (const inner of values) ahead.push({ value: inner, depth: depth + 1 });
  }
}
