import { expect, test } from "vitest";
import { lookAlikeWarnings, warningsAbout } from "../../src/policy/display.ts";

test.each([
  ["rm а.txt", []],
  ["cаt x", ['it contains "а" (Cyrillic, U+0430), which looks like "a": "c\\u{430}t" is not "cat"']],
  ["curl https://gіthub.com", ['"g\\u{456}thub.com" is not "github.com", as a host it is xn--gthub-n2e.com']],
  ["сор x", ["с", "о", "р"]],
  ["ｒm x", ["ｒ"]],
  ["cat src∕a.ts", ["∕"]],
  ["cat ⅽ", ["ⅽ"]],
  ["git push origin masteг", ["г"]],
  ["rm -r src\u0338/x", ["a combining mark (U+0338)"]],
  ["rm cafe\u0301 \u0301x", ["a combining mark (U+0301)"]],
  ["rm na\ufffdme", ["U+FFFD"]],
])("%j carries a warning for each look-alike", (text, parts) => {
  const warnings = lookAlikeWarnings(text).join("\n");
  for (const part of parts) expect(warnings).toContain(part);
});

test.each([
  "git commit -m 'Übersicht – 修正 🎉'",
  "echo 'Привет, мир'",
  "git commit -m 'שלום עולם'",
  "echo हिन्दी",
  "rm café",
  "ls -la",
])("%j carries none", (text) => {
  expect(lookAlikeWarnings(text)).toEqual([]);
});

test("a blank of another script is named as invisible", () => {
  expect(warningsAbout("rm\u2800x")).toHaveLength(1);
});
