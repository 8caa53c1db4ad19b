import { expect, test } from "vitest";
import { Opaque } from "../../../src/policy/shell/line.ts";
import { readLine } from "../../../src/policy/shell/reader.ts";
import { confirm } from "../../../src/policy/shell/second-reading.ts";

const line = "a=1 git log --oneline 2> errors | grep x && cat < notes; sort <<< text";

test("a line that both parsers read alike is confirmed", () => {
  expect(confirm(readLine(line), line)).toBeUndefined();
});

test.each([
  ["a word", line.replace("log", "push")],
  ["a word more", line.replace("log", "log -p")],
  ["a word less", line.replace("--oneline ", "")],
  ["an assignment", line.replace("a=1", "a=2")],
  ["the target of a redirect", line.replace("errors", "/etc/passwd")],
  ["what a redirect reads", line.replace("notes", "secrets")],
  ["the descriptor of a redirect", line.replace("2>", "1>")],
  ["how commands are joined", line.replace("&&", "||")],
  ["a command more", `${line}; rm x`],
  ["a command less", line.replace("; sort <<< text", "")],
  ["the text that a command reads", line.replace("<<< text", "<<< other")],
])("a line that the second parser reads with another form of %s is opaque", (_, other) => {
  expect(() => confirm(readLine(line), other)).toThrow(Opaque);
});
