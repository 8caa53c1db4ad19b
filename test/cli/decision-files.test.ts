import { mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { BegunSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createDecisionFiles } from "../../src/cli/hook/decision-files.ts";

test("of many remembered decisions those older than a day are removed", async () => {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-decisions-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const memory = createDecisionFiles(directory, "token");
  const put = (key: string) => memory.put(key, { case: "begun", value: create(BegunSchema) });
  const yesterday = Date.now() / 1_000 - 90_000;
  const leave = (count: number) => {
    for (let i = 0; i < count; i++) {
      const file = join(directory, `old-${i}`);
      writeFileSync(file, "");
      utimesSync(file, yesterday, yesterday);
    }
  };
  leave(100);
  await put("a");
  expect(readdirSync(directory)).toHaveLength(101);
  leave(300);
  await put("b");
  expect(readdirSync(directory)).toHaveLength(2);
  expect(await memory.get("a")).toBeDefined();
});
