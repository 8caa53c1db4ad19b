import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { createSafeDecoder, terminalLine, terminalSafe } from "../../src/cli/terminal/terminal-safe.ts";

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not get through
const control = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/;
const red = "\x1b[31mred\x1b[0m";

describe("terminalSafe", () => {
  test("keeps plain text, line ends, tabs, accents, emoji and scripts of all directions", () => {
    const text = "a\tb\nñ 中文 עברית 👩‍👩‍👧";
    expect(terminalSafe(text)).toBe(text);
  });

  test.each([
    ["a title (OSC)", "\x1b]0;evil\x07", "\\x1b]0;evil\\x07"],
    ["the clipboard (OSC 52)", "\x1b]52;c;ZXZpbA==\x1b\\", "\\x1b]52;c;ZXZpbA==\\x1b\\"],
    ["a moved cursor (CSI)", "ok\x1b[1A\x1b[2K", "ok\\x1b[1A\\x1b[2K"],
    ["a device control string", "\x1bPq\x1b\\", "\\x1bPq\\x1b\\"],
    ["8-bit CSI and OSC (C1)", "\x9b2J\x9d0;x\x9c", "\\x9b2J\\x9d0;x\\x9c"],
    ["backspace and bell", "a\b\x07", "a\\x08\\x07"],
    ["delete", "\x7f", "\\x7f"],
    ["a reversed name", "gpj.\u202eexe.txt", "gpj.\\u202eexe.txt"],
    ["isolates and marks", "\u2066a\u2069\u200f", "\\u2066a\\u2069\\u200f"],
    ["invisible characters", "rm\u200b -rf\ufeff", "rm\\u200b -rf\\ufeff"],
    ["tag characters", "a\u{e0041}", "a\\u{e0041}"],
  ])("shows %s instead of obeying it", (_, hostile, shown) => {
    expect(terminalSafe(hostile)).toBe(shown);
    expect(terminalSafe(hostile, { colours: "keep" })).toBe(shown);
  });

  test("a lone return, which would overwrite the line, ends it", () => {
    expect(terminalSafe("safe\rrm -rf /\r\n")).toBe("safe\nrm -rf /\n");
  });

  test("colours are shown, left out or kept, as asked", () => {
    expect(terminalSafe(red)).toBe("\\x1b[31mred\\x1b[0m");
    expect(terminalSafe(red, { colours: "drop" })).toBe("red");
    expect(terminalSafe(red, { colours: "keep" })).toBe(red);
  });

  test("a colour that is kept ends with the text", () => {
    expect(terminalSafe("\x1b[31mred", { colours: "keep" })).toBe("\x1b[31mred\x1b[0m");
  });

  test("no control character gets through, whatever the text", () => {
    const pieces = fc.constantFrom("\x1b", "[", "31", "m", "]", ";", "\x07", "\x9b", "\r", "\n", "a", "\u{e0001}");
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string({ unit: "binary" }),
          fc.array(pieces).map((all) => all.join("")),
        ),
        (text) => {
          expect(terminalSafe(text)).not.toMatch(control);
          // biome-ignore lint/suspicious/noControlCharactersInRegex: what is kept is taken out, the rest must be clean
          expect(terminalSafe(text, { colours: "keep" }).replace(/\x1b\[[0-9;:]*m/g, "")).not.toMatch(control);
        },
      ),
    );
  });
});

describe("createSafeDecoder", () => {
  test("a character, a colour and a line end that are cut in two come out whole", () => {
    const decoder = createSafeDecoder({ colours: "keep" });
    const bytes = Buffer.from(`ñ\r\n${red}`);
    const shown = [...bytes].map((byte) => decoder.push(Uint8Array.of(byte))).join("") + decoder.end();
    expect(shown.replaceAll("\x1b[0m", "")).toBe("ñ\n\x1b[31mred");
  });

  test("what is held back comes at the end, made safe", () => {
    const decoder = createSafeDecoder({});
    expect(decoder.push(Buffer.from("a\x1b[3"))).toBe("a");
    expect(decoder.end()).toBe("\\x1b[3");
  });
});

test("oneLine makes one line of many", () => {
  expect(terminalLine(" npm test\n\trm -rf /\x1b[2K")).toBe("npm test rm -rf /\\x1b[2K");
});
