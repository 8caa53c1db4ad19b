import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { link, mkdir, readFile, rename, rm, symlink, truncate, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { callTool, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { boundTool } from "../../src/tool/define-tool.ts";
import { ChangedAfterApproval, ToolFailure } from "../../src/tool/errors.ts";
import { bytesOf, readThrough } from "../../src/tool/open-file.ts";
import { createLineWindow } from "../../src/tools/read/line-window.ts";
import { readTool } from "../../src/tools/read.ts";

let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const write = (name: string, content: string | Uint8Array) => writeFile(join(site.directory, name), content);
const show = (filePath: string, window = {}) => callTool(site, readTool, { filePath, ...window });
const lines = (count: number, text = "line") => Array.from({ length: count }, (_, i) => `${text} ${i + 1}\n`).join("");
const pixel = Buffer.from(
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
  "base64",
);

test("what a file has grown by since it was opened is read in large pieces, and only up to a limit", async () => {
  await write("log", "x");
  const path = await site.workspace.resolve("log");
  using file = path.open();
  if (file === undefined) throw new Error("the file was not opened");
  await truncate(path.absolute, 8 * 1024 * 1024);
  let count = 0;
  await readThrough(bytesOf(file), () => {
    count += 1;
  });
  expect(count).toBeLessThan(150);
  await expect(file.bytes()).rejects.toThrow("grows while it is read");
});

describe("a text file", () => {
  test("is shown whole, with line numbers and an end mark", async () => {
    await write("a.txt", "one\r\ntwo");
    const { output, metadata } = await show("a.txt");
    expect(output).toBe(
      `<path>${site.directory}/a.txt</path>\n<type>file</type>\n<content>\n1: one\n2: two\n\n(End of file - total 2 lines)\n</content>`,
    );
    expect(metadata).toEqual({ preview: "one\ntwo", truncated: false, totalLines: 2, shownLines: 2 });
  });

  test("is counted from 1, as the schema and the page of the tools say", async () => {
    expect(boundTool(readTool).definition.inputSchema).toMatchObject({
      properties: { offset: { description: expect.stringContaining("counted from 1; 0 is the first one, too") } },
    });
    const page = await readFile(join(import.meta.dirname, "../../docs/tools.md"), "utf8");
    expect(page).toMatch(/^\| `read` \|.*`offset` counts from 1/m);
  });

  test("is shown from offset to limit, with a hint how to continue", async () => {
    await write("a.txt", lines(10));
    const { output, metadata } = await show("a.txt", { offset: 3, limit: 2 });
    expect(output).toContain("\n3: line 3\n4: line 4\n\n(Showing lines 3-4 of 10. Use offset=5 to continue.)\n");
    expect(metadata).toMatchObject({ truncated: true });
  });

  test("is shown 2,000 lines at a time unless fewer are wanted", async () => {
    await write("a.txt", lines(2_001));
    for (const window of [{}, { limit: 9_000 }, { offset: 0 }]) {
      expect((await show("a.txt", window)).output).toContain(
        "(Showing lines 1-2000 of 2001. Use offset=2001 to continue.)",
      );
    }
    expect((await show("a.txt", { offset: 2_001 })).output).toContain(
      "2001: line 2001\n\n(End of file - total 2001 lines)",
    );
  });

  test("stops at 50 KB, within the limit that the tool declares", async () => {
    await write("a.txt", lines(1_000, "x".repeat(100)));
    const { output = "" } = await show("a.txt");
    const [, last, next] =
      /\(Output capped at 50 KB. Showing lines 1-(\d+). Use offset=(\d+) to continue.\)/.exec(output) ?? [];
    expect(Number(next)).toBe(Number(last) + 1);
    expect(output).toContain(`\n${last}: `);
    expect(output).not.toContain(`\n${next}: `);
    expect(Buffer.byteLength(output)).toBeGreaterThan(50_000);
    expect(Buffer.byteLength(output)).toBeLessThan(boundTool(readTool).keep.bytes);
  });

  test("has long lines truncated at 2,000 characters, never inside one", async () => {
    await write("a.txt", `${"😀".repeat(2_001)}\n${"😀".repeat(2_000)}\n`);
    const { output } = await show("a.txt");
    expect(output).toContain(`1: ${"😀".repeat(2_000)}... (line truncated to 2000 chars)\n2: ${"😀".repeat(2_000)}\n`);
  });

  test("may be empty", async () => {
    await write("a.txt", "");
    expect((await show("a.txt")).output).toContain("(End of file - total 0 lines)");
  });

  test("has no lines after its last one", async () => {
    await write("a.txt", "a\nb\n");
    await expect(show("a.txt", { offset: 3 })).rejects.toThrow("Offset 3 is out of range for this file (2 lines)");
  });

  test("is recorded as read by the hash of the whole when a part is shown", async () => {
    const content = lines(5_000);
    await write("a.txt", content);
    await show("a.txt", { limit: 1 });
    expect(site.reads.get(join(site.directory, "a.txt"))).toBe(createHash("sha256").update(content).digest("hex"));
  });

  test("stops with the reason when the call is cancelled", async () => {
    await write("a.txt", "x");
    const reason = new Error("cancelled");
    await expect(callTool(site, readTool, { filePath: "a.txt" }, { signal: AbortSignal.abort(reason) })).rejects.toBe(
      reason,
    );
    expect(site.reads.size).toBe(0);
  });
});

describe("an encoding", () => {
  test("is read by its byte order mark, which is not shown", async () => {
    const swapped = Buffer.from("\uFEFFgrün\n😀\n", "utf16le").swap16();
    for (const [name, content, encoding] of [
      ["utf-8", Buffer.from("\uFEFFgrün\n😀\n"), undefined],
      ["utf-16le", Buffer.from("\uFEFFgrün\n😀\n", "utf16le"), "utf-16le"],
      ["utf-16be", swapped, "utf-16be"],
    ] as const) {
      await write(name, content);
      const { output, metadata } = await show(name);
      expect(output).toContain("<content>\n1: grün\n2: 😀\n\n(End of file - total 2 lines)");
      expect(metadata?.encoding).toBe(encoding);
      expect(site.reads.get(join(site.directory, name))).toBe(createHash("sha256").update(content).digest("hex"));
    }
  });

  test("that is none of them is read as Latin-1 line by line, and reported", async () => {
    await write("a.txt", Buffer.concat([Buffer.from("grün 😀\n"), Buffer.from("grün\n", "latin1")]));
    const { output, metadata } = await show("a.txt");
    expect(output).toContain("1: grün 😀\n2: grün\n");
    expect(metadata?.encoding).toBe("latin-1");
  });

  test("does not depend on the pieces in which the file is read", async () => {
    const short = fc.string({ unit: "grapheme", maxLength: 30 }).map((text) => text.replace(/[\r\n\uFEFF]/gu, ""));
    const long = fc.tuple(fc.constantFrom("x", "ü", "😀"), fc.integer({ min: 1_995, max: 2_005 }));
    const line = fc.oneof({ weight: 4, arbitrary: short }, { arbitrary: long.map(([c, n]) => c.repeat(n)), weight: 1 });
    const end = fc.constantFrom("\n", "\r\n");
    const position = fc.integer({ min: 1, max: 12 });
    await fc.assert(
      fc.property(
        fc.array(line, { minLength: 1 }),
        end,
        fc.tuple(position, position, fc.integer({ min: 1, max: 5_000 })),
        (texts, end, [offset, limit, size]) => {
          const bytes = Buffer.from(texts.map((text) => `${text}${end}`).join(""));
          const window = createLineWindow(offset, limit);
          for (let at = 0; at < bytes.length; at += size) window.add(bytes.subarray(at, at + size));
          const shown = texts.map((text, i) => `${i + 1}: ${cutAt2000(text)}\n`).slice(offset - 1, offset - 1 + limit);
          const all = { total: texts.length, capped: false, isLatin1: false };
          expect(window.end()).toEqual({ text: shown.join(""), shown: shown.length, ...all });
        },
      ),
    );
  });
});

const cutAt2000 = (line: string) =>
  line.length > 2_000 && [...line].length > 2_000
    ? `${[...line].slice(0, 2_000).join("")}... (line truncated to 2000 chars)`
    : line;

describe("a notebook", () => {
  const cells = [
    { cell_type: "markdown", source: ["# Title\n", "text"] },
    {
      cell_type: "code",
      source: "print(1)\n1/0",
      outputs: [
        { output_type: "stream", name: "stdout", text: ["1\n"] },
        { output_type: "display_data", data: { "text/plain": "<Figure>", "image/png": "…" } },
        { output_type: "error", ename: "E", evalue: "", traceback: ["\u001b[31mZeroDivisionError\u001b[0m"] },
      ],
    },
  ];

  test("is shown as cells with output, and recorded by the hash of the file", async () => {
    const content = JSON.stringify({ nbformat: 4, nbformat_minor: 5, metadata: {}, cells });
    await write("a.ipynb", content);
    const { output } = await show("a.ipynb");
    expect(output).toContain(
      [
        "1: --- cell 1 (markdown) ---\n2: # Title\n3: text\n4: ",
        "5: --- cell 2 (code) ---\n6: print(1)\n7: 1/0\n8: --- output of cell 2 ---\n9: 1",
        "10: <Figure>\n11: (image/png)\n12: ZeroDivisionError\n",
      ].join("\n"),
    );
    expect(site.reads.get(join(site.directory, "a.ipynb"))).toBe(createHash("sha256").update(content).digest("hex"));
  });

  test("that is broken is shown as text", async () => {
    await write("a.ipynb", '{"cells": [');
    expect((await show("a.ipynb")).output).toContain('1: {"cells": [\n');
  });
});

test("a directory is listed by name, directories and links to them with a slash", async () => {
  await mkdir(join(site.directory, "b"));
  await write("a", "");
  await symlink("b", join(site.directory, "c"));
  await symlink("nowhere", join(site.directory, "d"));
  expect((await show(".")).output).toBe(
    `<path>${site.directory}</path>\n<type>directory</type>\n<entries>\na\nb/\nc/\nd\n\n(4 entries)\n</entries>`,
  );
  expect((await show(".", { offset: 2, limit: 2 })).output).toContain(
    "\nb/\nc/\n\n(Showing 2 of 4 entries. Use 'offset' parameter to read beyond entry 3)\n",
  );
});

test("a missing file is reported with similar names", async () => {
  await write("Config.toml", "");
  await write("config", "");
  await write("other", "");
  const call = await planCall(site, readTool, { filePath: "config.toml" });
  const message = `File not found: ${site.directory}/config.toml\n\nDid you mean one of these?\n${site.directory}/Config.toml\n${site.directory}/config`;
  await expect(call.plan.inspect?.()).rejects.toThrow(new ToolFailure(message));
  await expect(call.run()).rejects.toThrow(new ToolFailure(message));
});

test("a mistyped name is matched, too", async () => {
  await write("README.md", "");
  await expect(show("REAMDE.md")).rejects.toThrow(`Did you mean one of these?\n${site.directory}/README.md`);
});

describe("what is not text", () => {
  test("is attached if it is a PDF", async () => {
    await write("a.pdf", "%PDF-1.7\n%\u00e2\u00e3");
    const { output, attachments } = await show("a.pdf");
    expect(output).toBe("PDF read successfully");
    expect(attachments).toMatchObject([{ mime: "application/pdf", filename: "a.pdf" }]);
  });

  test.each([
    ["image/jpeg", "\xff\xd8\xff\xe0"],
    ["image/gif", "GIF89a"],
    ["image/webp", "RIFF\x10\0\0\0WEBPVP8 "],
  ])("is attached as %s", async (mime, head) => {
    await write("a", Buffer.from(head, "latin1"));
    expect((await show("a")).attachments).toMatchObject([{ mime }]);
  });

  test("is attached if it is an image, by content and not by name", async () => {
    await write("picture.bin", pixel);
    const { output, attachments } = await show("picture.bin");
    expect(output).toBe("Image read successfully");
    expect(attachments).toEqual([{ mime: "image/png", filename: "picture.bin", data: pixel }]);
    expect(site.reads.get(join(site.directory, "picture.bin"))).toBe(createHash("sha256").update(pixel).digest("hex"));
  });

  test("is refused if it is an image over 5 MiB", async () => {
    await write("a.png", pixel);
    await truncate(join(site.directory, "a.png"), 5 * 1024 * 1024 + 1);
    await expect(show("a.png")).rejects.toThrow("over 5 MiB");
  });

  test.each([
    ["by its extension", "a.zip", "text"],
    ["by a NUL", "a.txt", "text\0"],
    ["by many control characters", "a.txt", "\u0001\u0002\u0003text"],
  ])("is refused as binary %s", async (_, name, content) => {
    await write(name, content);
    await expect(show(name)).rejects.toThrow(`Cannot read binary file: ${site.directory}/${name}`);
    expect(site.reads.size).toBe(0);
  });

  test("is refused if reading it could block: pipe, device, socket", async () => {
    execFileSync("mkfifo", [join(site.directory, "pipe")]);
    const server = createServer().listen(join(site.directory, "socket"));
    for (const path of ["pipe", "socket", "/dev/zero"]) {
      const call = await planCall(site, readTool, { filePath: path });
      await expect(call.plan.inspect?.()).rejects.toThrow("neither a file nor a directory");
      await expect(call.run()).rejects.toThrow(ToolFailure);
    }
    server.close();
  });
});

describe("permission", () => {
  test("is asked with the path, and existence is revealed only if reading is allowed", async () => {
    const { plan } = await planCall(site, readTool, { filePath: "missing" });
    expect(plan.asks).toEqual([
      { permission: "read", patterns: ["missing"], paths: [join(site.directory, "missing")] },
    ]);
    expect(plan.reveals).toMatchObject([{ pattern: "missing" }]);
  });

  test("is asked for the target of a link", async () => {
    await writeFile(join(site.outside, "secret"), "x");
    await symlink(join(site.outside, "secret"), join(site.directory, "harmless"));
    const { plan } = await planCall(site, readTool, { filePath: "harmless" });
    expect(plan.asks.map((ask) => [ask.permission, ask.patterns[0]])).toEqual([
      ["external_directory", `${site.outside}/*`],
      ["read", `${site.outside}/secret`],
    ]);
  });

  test("for a file does not cover a link that replaces it or its directory", async () => {
    await writeFile(join(site.outside, "a"), "secret");
    await mkdir(join(site.directory, "folder"));
    await write("folder/a", "harmless");
    const call = await planCall(site, readTool, { filePath: "folder/a" });
    await rename(join(site.directory, "folder"), join(site.directory, "moved"));
    await symlink(site.outside, join(site.directory, "folder"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);

    await write("b", "harmless");
    const other = await planCall(site, readTool, { filePath: "b" });
    await rename(join(site.directory, "b"), join(site.directory, "c"));
    await symlink(join(site.outside, "a"), join(site.directory, "b"));
    await expect(other.run()).rejects.toThrow(ChangedAfterApproval);
  });

  test("for a file does not cover a hard link that replaces it; an existing hard link is asked for as such", async () => {
    await write(".env", "secret");
    await write("a", "harmless");
    const call = await planCall(site, readTool, { filePath: "a" });
    await rm(join(site.directory, "a"));
    await link(join(site.directory, ".env"), join(site.directory, "a"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
    const { plan } = await planCall(site, readTool, { filePath: "a" });
    expect(plan.asks).toEqual([
      {
        permission: "read",
        patterns: ["a"],
        paths: [join(site.directory, "a")],
        alwaysAsk: expect.stringContaining("hard links"),
      },
    ]);
  });

  test("for a directory does not cover a link that replaces it", async () => {
    await mkdir(join(site.directory, "folder"));
    const call = await planCall(site, readTool, { filePath: "folder" });
    await rename(join(site.directory, "folder"), join(site.directory, "moved"));
    await symlink(site.outside, join(site.directory, "folder"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
  });
});

describe("a stored output", () => {
  test("is read by its id, asks nothing and records nothing", async () => {
    site.outputs.set("out_1", Buffer.from(lines(100_000)));
    const call = await planCall(site, readTool, { filePath: "toolgate-output:out_1", offset: 99_999 });
    expect(call.plan.asks).toEqual([]);
    const { output } = await call.run();
    expect(output).toContain("<path>toolgate-output:out_1</path>");
    expect(output).toContain("99999: line 99999\n100000: line 100000\n\n(End of file - total 100000 lines)");
    expect(site.reads.size).toBe(0);
  });

  test("that does not exist is named in the error", async () => {
    await expect(show("toolgate-output:none")).rejects.toThrow("There is no stored output none in this session");
  });
});

test("a large file counts as read when a part of it was shown", async () => {
  await write("large.txt", "first\n");
  execFileSync("bash", ["-c", `yes "$(printf 'y%.0s' {1..99})" | head -c 60000000 >> large.txt`], {
    cwd: site.directory,
  });
  const { output } = await show("large.txt", { limit: 1 });
  expect(output).toContain("1: first\n\n(Showing lines 1-1 of 600001. Use offset=2 to continue.)");
  expect(site.reads.size).toBe(1);
});

test("a file of gigabytes is read only up to the shown lines, and does not count as read", async () => {
  const size = 8 * 1024 ** 4;
  await write("huge.log", lines(100_000));
  await truncate(join(site.directory, "huge.log"), size);
  const { output } = await show("huge.log", { offset: 99_999, limit: 1 });
  expect(output).toContain(
    `99999: line 99999\n\n(Showing lines 99999-99999 of a file of ${size} bytes. Use offset=100000 to continue.)`,
  );
  expect(site.reads.size).toBe(0);
});
