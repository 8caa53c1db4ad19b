import { spawnSync } from "node:child_process";
import { chownSync, existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { connect } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { changes } from "./attempts/changes.ts";
import { attemptRules, presetRules, secret } from "./attempts/fixture.ts";
import { reads } from "./attempts/reads.ts";
import { removals } from "./attempts/removals.ts";
import { type Attempted, runAttempts, startMark } from "./attempts/run-attempts.ts";
import { newerBubblewrap } from "./newer-bubblewrap.ts";

const isRoot = process.getuid?.() === 0;
const bubblewraps = [
  { program: "bubblewrap of the system", path: () => process.env.PATH ?? "" },
  // Its package has a program for this architecture alone.
  ...(process.arch === "x64"
    ? [{ program: "a newer bubblewrap", path: () => `${newerBubblewrap()}:${process.env.PATH}` }]
    : []),
];
const users = [
  ...(isRoot ? [{ user: "root", uid: 0 }] : []),
  { user: "another user than root", uid: isRoot ? 65_534 : undefined },
];
const pairs = users.flatMap((user) => bubblewraps.map((bubblewrap) => ({ ...user, ...bubblewrap })));
// Each pair takes a minute or two; test/sandbox/enforcement.test.ts runs as root in the system's bubblewrap, and TOOLGATE_LONG=1 runs all.
const isLong = process.env.TOOLGATE_LONG === "1";
const settings = isLong ? pairs : pairs.slice(-1);
/** Under the preset every fourth attempt runs, with TOOLGATE_LONG=1 all. */
const underPreset = (attempts: typeof reads) => attempts.filter((_, i) => isLong || i % 4 === 0);

const namesOf = (all: readonly Attempted[], are: (one: Attempted) => boolean) =>
  all.filter(are).map(({ attempt }) => attempt);

describe.each(settings)("commands of a service that runs as $user, in $program", ({ uid, path }) => {
  const ran = async (attempts: typeof reads, settings = attemptRules) => {
    const service = await startService({
      ...{ settings, env: { PATH: path() } },
      ...(uid !== undefined && { uid }),
    });
    const outcomes = await runAttempts(service, attempts, uid);
    for (const { attempt, printed } of [...outcomes.control, ...outcomes.masked])
      expect({ attempt, starts: printed.split(startMark).length - 1 }).toEqual({
        attempt,
        starts: attempt.split(" ⏎ ").length,
      });
    return outcomes;
  };

  test(`read no denied file: ${reads.length} attempts, each of which succeeds where nothing is denied`, async () => {
    const { control, masked } = await ran(reads);
    const isLeaking = ({ printed }: Attempted) => printed.includes(secret);
    expect.soft(namesOf(control, (one) => !isLeaking(one))).toEqual([]);
    expect(namesOf(masked, isLeaking)).toEqual([]);
  });

  test(`change nothing that is denied or protected: ${changes.length} attempts, each of which succeeds where nothing is`, async () => {
    const { control, masked } = await ran(changes);
    expect.soft(namesOf(control, ({ hasChanged }) => !hasChanged)).toEqual([]);
    expect(namesOf(masked, ({ hasChanged }) => hasChanged)).toEqual([]);
  });

  test("read and change nothing that is denied or protected under the preset, by which they run without an ask", async () => {
    const read = await ran(underPreset(reads), presetRules);
    expect(namesOf(read.masked, ({ printed }) => printed.includes(secret))).toEqual([]);
    const changed = await ran(underPreset(changes), presetRules);
    expect(namesOf(changed.masked, ({ hasChanged }) => hasChanged)).toEqual([]);
  });

  test(`remove nothing where rules deny rm: ${removals.length} lines, each of which does in a plain shell`, async () => {
    const service = await startService({
      settings: 'unattended = "deny"\n[permission.bash]\n"*" = "allow"\n"rm *" = "deny"\n',
      env: { PATH: path() },
      ...(uid !== undefined && { uid }),
    });
    const { tools } = connect(service, "caller");
    const cwd = service.workspace;
    const file = join(cwd, "x");
    const make = () => {
      writeFileSync(file, "");
      if (uid !== undefined) chownSync(file, uid, uid);
    };
    for (const command of removals) {
      make();
      spawnSync("/bin/bash", ["-c", command], { cwd, ...(uid !== undefined && { uid, gid: uid }) });
      const isRemovedPlainly = !existsSync(file);
      make();
      const { part } = await tools.callTool({ tool: "bash", input: { command } });
      const outcome = { isRemovedPlainly, state: part?.state.case, isRemoved: !existsSync(file) };
      expect
        .soft({ command, ...outcome })
        .toEqual({ command, isRemovedPlainly: true, state: "error", isRemoved: false });
    }
  });
});
