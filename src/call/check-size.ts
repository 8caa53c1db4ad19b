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
