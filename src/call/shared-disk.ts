import { hash, timingSafeEqual } from "node:crypto";
import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { basename, dirname, resolve } from "node:path";
import type { BeginCallRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";

/** Name of a nonce file: its random part makes it unknown to everyone who does not see the host's disk. */
export const nonceName = /^\.toolgate-nonce-([0-9a-f]{32})$/;

/** Tests whether the host sees the files of this machine: its nonce file lies in its directory here too, see the contract. */
export async function provesSharedDisk({
  kind,
  foreignSession,
  cwd,
  noncePath,
}: Pick<BeginCallRequest, "kind" | "foreignSession" | "cwd" | "noncePath">): Promise<boolean> {
  const [, nonce] = nonceName.exec(basename(noncePath)) ?? [];
  if (nonce === undefined || dirname(noncePath) !== resolve(cwd)) return false;
  const expected = Buffer.from(hash("sha256", `${kind}\n${foreignSession}\n${nonce}`, "hex"));
  try {
    await using file = await open(noncePath, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    if (!(await file.stat()).isFile()) return false;
    const { buffer, bytesRead } = await file.read(Buffer.alloc(expected.length + 1), 0, expected.length + 1, 0);
    return bytesRead === expected.length && timingSafeEqual(buffer.subarray(0, bytesRead), expected);
  } catch {
    return false;
  }
}
