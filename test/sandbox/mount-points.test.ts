import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createMountPoints } from "../../src/sandbox/mount-points.ts";

let root: string;
let directory: string;
let list: string;
beforeEach(() => {
  root = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-mounts-")));
  [directory, list] = [join(root, "work"), join(root, "list")];
  mkdirSync(directory);
});
afterEach(() => rmSync(root, { recursive: true }));

const place = (name: string) => join(directory, name);
const hold = (absent: string[], mounted: string[] = []) =>
  createMountPoints(list).hold({ absent: absent.map(place), mounted: mounted.map(place), sinceMs: Date.now() - 50 });

describe("a placeholder", () => {
  test("exists until the last command that uses it has ended", () => {
    const points = createMountPoints(list);
    const traces = { absent: [place(".claude")], mounted: [], sinceMs: Date.now() };
    const free = [points.hold(traces), points.hold(traces)];
    free[0]?.free();
    expect(readdirSync(directory)).toEqual([".claude"]);
    free[1]?.free();
    expect(readdirSync(directory)).toEqual([]);
  });

  test("stays if something is in it, or if it was replaced", () => {
    const free = hold([".claude", ".idea", ".vscode"]);
    writeFileSync(place(".claude/settings.json"), "{}");
    rmSync(place(".idea"), { recursive: true });
    writeFileSync(place(".idea"), "");
    free.free();
    expect(readdirSync(directory).sort()).toEqual([".claude", ".idea"]);
  });

  test("is not made over something, nor in a directory that does not exist", () => {
    mkdirSync(place(".claude"));
    hold([".claude", "gone/.idea"]).free();
    expect(readdirSync(directory)).toEqual([".claude"]);
  });
});

describe("a placeholder on which a sandbox waits", () => {
  const resting = () => readdirSync(join(list, "resting"));
  const waits = () => {
    const points = createMountPoints(list);
    const traces = { absent: [place(".claude")], mounted: [], sinceMs: Date.now() };
    return { points, traces, end: points.hold(traces).rest() };
  };

  test("lies elsewhere while no command uses it, and is the same one when it is back", () => {
    const { points, traces, end } = waits();
    expect(readdirSync(directory)).toEqual([]);
    expect(resting()).toHaveLength(1);
    expect([...points.watch().paths]).toEqual([]);
    const { ino } = lstatSync(join(list, "resting", resting()[0] ?? ""));
    const held = points.hold(traces);
    expect([lstatSync(place(".claude")).ino, resting()]).toEqual([ino, []]);
    held.free();
    expect([readdirSync(directory), resting().length]).toEqual([[], 1]);
    end?.();
    expect(resting()).toEqual([]);
  });

  test("replaces nothing that was made meanwhile", () => {
    const { points, traces, end } = waits();
    mkdirSync(place(".claude"));
    const { ino } = lstatSync(place(".claude"));
    points.hold(traces).free();
    end?.();
    expect([lstatSync(place(".claude")).ino, resting()]).toEqual([ino, []]);
  });

  test("stays in its place once something is in it", () => {
    const held = hold([".claude", ".idea"]);
    writeFileSync(place(".claude/settings.json"), "{}");
    expect(held.rest()).toBeUndefined();
    held.free();
    expect([readdirSync(directory), resting()]).toEqual([[".claude"], []]);
  });
});

test("after kill -9 the next start removes what mounts have left, and nothing else", async () => {
  const child = spawn(process.execPath, [join(import.meta.dirname, "hold-mounts.ts"), list, directory], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await once(child.stdout, "data");
  child.kill("SIGKILL");
  await once(child, "exit");
  expect(readdirSync(directory).sort(), "control: they exist").toEqual([".claude", "gone.env", "secret"]);
  expect(readdirSync(join(list, "resting")), "control: one waits").toHaveLength(1);
  writeFileSync(place("other.env"), "");
  mkdirSync(place("empty"));
  createMountPoints(list).recover();
  expect(readdirSync(directory).sort()).toEqual(["empty", "other.env"]);
  expect(readdirSync(list)).toEqual([]);
});

test("after kill -9 what has been put into a placeholder or a mount point stays", async () => {
  const child = spawn(process.execPath, [join(import.meta.dirname, "hold-mounts.ts"), list, directory], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await once(child.stdout, "data");
  child.kill("SIGKILL");
  await once(child, "exit");
  for (const name of [".claude/a", "secret/b"]) writeFileSync(place(name), "");
  rmSync(place("gone.env"));
  writeFileSync(place("gone.env"), "");
  createMountPoints(list).recover();
  expect(readdirSync(directory).sort()).toEqual([".claude", "gone.env", "secret"]);
});

test("a list that another starting process removes meanwhile counts as empty", () => {
  mkdirSync(list);
  // A dead link is listed and cannot be read, as a file that vanished.
  symlinkSync(join(root, "gone"), join(list, `${process.pid}`));
  createMountPoints(list).recover();
  expect(readdirSync(list)).toEqual([]);
});
