import { mkdir, symlink, writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { openTestWorkspace, type TestWorkspace } from "../../src/testing.ts";
import { ToolFailure } from "../../src/tool/errors.ts";
import { pathAsks } from "../../src/tool/path-asks.ts";
import { openWorkspace } from "../../src/tool/workspace.ts";

let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const resolve = (path: string) => site.workspace.resolve(path);

describe("resolve", () => {
  test("a relative path is resolved against the workspace and shown relative to it", async () => {
    await mkdir(join(site.directory, "src"));
    const here = { external: false, isDirectory: true, otherNames: false, isSpecial: false };
    expect(await resolve("src")).toMatchObject({ ...here, absolute: join(site.directory, "src"), pattern: "src" });
    expect(await resolve("./src/../")).toMatchObject({ ...here, absolute: site.directory, pattern: "." });
  });

  test("missing parts are appended as written", async () => {
    const path = await resolve("a/b/../c.txt");
    expect(path).toMatchObject({
      absolute: join(site.directory, "a/c.txt"),
      pattern: "a/c.txt",
      external: false,
      isDirectory: false,
      otherNames: false,
      isSpecial: false,
    });
  });

  test("a sibling whose name begins like the workspace's is outside", async () => {
    const path = await resolve(`${site.directory}-secret/key`);
    expect(path).toMatchObject({ external: true, pattern: `${site.directory}-secret/key` });
  });

  test("a name that begins with two dots is inside", async () => {
    expect(await resolve("..notes")).toMatchObject({ external: false, pattern: "..notes" });
  });

  test("~ is the home directory, and ~name a plain name", async () => {
    expect((await resolve("~/x-does-not-exist")).absolute).toBe(join(homedir(), "x-does-not-exist"));
    expect(await resolve("~name")).toMatchObject({ pattern: "~name" });
  });

  test("a link that leads outside is outside, also in the middle of a path", async () => {
    await symlink(site.outside, join(site.directory, "link"));
    expect(await resolve("link/new/file")).toMatchObject({ external: true, absolute: join(site.outside, "new/file") });
  });

  test("a link to a missing file is followed to its target", async () => {
    await symlink("../other/missing", join(site.directory, "dangling"));
    expect(await resolve("dangling")).toMatchObject({ external: true, absolute: join(site.outside, "missing") });
  });

  test(".. after a link leaves the target of the link", async () => {
    await mkdir(join(site.outside, "deep"));
    await symlink(join(site.outside, "deep"), join(site.directory, "link"));
    expect((await resolve("link/../file")).absolute).toBe(join(site.outside, "file"));
  });

  test("links that lead to one another are an error", async () => {
    await symlink("b", join(site.directory, "a"));
    await symlink("a", join(site.directory, "b"));
    await expect(resolve("a")).rejects.toThrow("too many symbolic links");
  });

  test("a path with a NUL character is refused", async () => {
    await expect(resolve("a\0b")).rejects.toThrow(ToolFailure);
  });

  test("a path below a file is resolved like a missing one", async () => {
    await writeFile(join(site.directory, "file"), "");
    expect(await resolve("file/x")).toMatchObject({ pattern: "file/x", isDirectory: false });
  });
});

describe("asks", () => {
  test("inside the workspace only the tool's own permission is asked", async () => {
    const path = await resolve("a.txt");
    expect(pathAsks("read", path)).toEqual([{ permission: "read", patterns: ["a.txt"], paths: [path.absolute] }]);
  });

  test("outside, the directory is asked for first", async () => {
    const path = await resolve("../other/a.txt");
    const [first, second] = pathAsks("edit", path, { filepath: path.absolute });
    expect(first).toEqual({
      permission: "external_directory",
      patterns: [`${site.outside}/*`],
      paths: [site.outside],
      metadata: { filepath: path.absolute, parentDir: site.outside },
    });
    expect(second).toMatchObject({ permission: "edit", patterns: [path.absolute] });
  });

  test("for a directory outside, that directory itself is asked for", async () => {
    expect(pathAsks("read", await resolve(site.outside))[0]).toMatchObject({ patterns: [`${site.outside}/*`] });
    expect(pathAsks("read", await resolve("/"))[0]).toMatchObject({ patterns: ["/*"], paths: ["/"] });
  });
});

test("a workspace is opened by its canonical path, and must be a directory", async () => {
  const link = join(site.outside, "link");
  await symlink(site.directory, link);
  expect((await openWorkspace("w", link)).directory).toBe(site.directory);
  const file = join(site.outside, "file");
  await writeFile(file, "");
  await expect(openWorkspace("w", file)).rejects.toThrow("is not a directory");
  await expect(openWorkspace("w", join(site.outside, "none"))).rejects.toThrow("cannot be opened");
});
