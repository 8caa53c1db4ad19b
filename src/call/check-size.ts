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
/** Levels of JSON that any message with a call can hold: each takes up to three levels of protobuf, and readers stop at 100. */
const maxLevels = 30;

/** Refuses metadata of a request with too many keys, too much nesting or too many bytes, before anything else looks at it. */
export function checkMetadata(value: JsonValue | undefined): void {
  checkExtent("metadata", value, maxKeys);
  checkSize("metadata", value, 64 * 1024);
}

/** Refuses a JSON value with so much nesting that no list with its call could be read. */
export function checkLevels(field: string, value: JsonValue | undefined): void {
  checkExtent(field, value, Number.POSITIVE_INFINITY);
}

function checkExtent(field: string, value: JsonValue | undefined, keyLimit: number): void {
  let keys = 0;
  const ahead = [{ value, levels: 1 }];
  for (let next = ahead.pop(); next; next = ahead.pop()) {
    if (typeof next.value !== "object" || next.value === null) continue;
    const { levels } = next;
    const values = Object.values(next.value);
    keys += values.length;
    if (keys > keyLimit || levels > maxLevels) {
      const limit = keys > keyLimit ? `more than ${keyLimit} keys` : `more than ${maxLevels} levels`;
      throw new RequestError(ErrorReason.INVALID_MESSAGE, `${field} has ${limit}`, { field });
    }
    for (const inner of values) if (typeof inner === "object") ahead.push({ value: inner, levels: levels + 1 });
  }
}
