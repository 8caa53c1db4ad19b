import { expect, test } from "vitest";
import { fileParts } from "../../src/call/settle.ts";
import { ToolFailure } from "../../src/tool/errors.ts";

test("a file of 5 MiB is stored whole; a larger file fails the call instead of being cut", async () => {
  const kept: Uint8Array[] = [];
  const keep = async (data: Uint8Array) => `toolgate-output:${kept.push(data)}`;
  const data = new Uint8Array(5 * 1024 * 1024);
  expect(await fileParts([{ mime: "image/png", filename: "a.png", data }], keep)).toMatchObject([
    { type: "file", mime: "image/png", filename: "a.png", size: BigInt(data.length), url: "toolgate-output:1" },
  ]);
  expect(kept).toEqual([data]);
  const larger = { mime: "image/png", data: new Uint8Array(data.length + 1) };
  await expect(fileParts([larger], keep)).rejects.toThrow(ToolFailure);
});
