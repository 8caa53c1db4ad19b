import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createBoundedMap } from "../core/bounded-map.ts";

/**
 * Creates a cache of the requests that were listed last. Approvers list the same open requests again and again, and a request that
 * is the same message as before is not encoded again either. No reader changes a message that a list returned.
 */
export function createRecentRequests(decode: (stored: Uint8Array) => PermissionRequest) {
  const recent = createBoundedMap<{ stored: Buffer; request: PermissionRequest }>(
    { maxCount: 256, maxLength: 1024 * 1024 },
    ({ stored }) => stored.byteLength,
  );
  return {
    /** Decodes the request of these bytes, unless they are what was last stored under this key. */
    decode(key: string, bytes: Uint8Array): PermissionRequest {
      const known = recent.get(key);
      if (known?.stored.equals(bytes)) return known.request;
      // A copy, since the bytes of a reply lie in a larger buffer.
      const stored = Buffer.from(bytes);
      const request = decode(stored);
      recent.set(key, { stored, request });
      return request;
    },
  };
}
