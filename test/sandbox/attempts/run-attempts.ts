import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toJsonString } from "@bufbuild/protobuf";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { connect } from "../../e2e/clients.ts";
import { read } from "../../e2e/reading.ts";
import type { Service } from "../../e2e/service.ts";
import { emptyDirectory } from "../../empty-directory.ts";
import { type Attempts, makeFixture, printState } from "./fixture.ts";

/** Effects of one attempt. */
export interface Attempted {
  /** Its command lines. */
  readonly attempt: string;
  /** Its output, with the mark of each command line that was started. */
  readonly printed: string;
  /** True if something that may not be changed is different after it. */
  readonly hasChanged: boolean;
}

/** Printed first by each command line, inside: without it a sandbox that did not start would look like one that holds. */
export const startMark = "attempt was started";

/**
 * Runs command lines of attempts, each in a new shell: `run NUMBER ID…` in the working directory, without an ID those of one line,
 * `control` each in its own copy of the fixture.
 */
const scripts = {
  state: printState,
  run: `
number=$1
shift
for id in \${*:-$(cat /tmp/singles)}; do timeout -k 1 20 /bin/bash --noprofile --norc /tmp/attempts/$id/$number < /dev/null >> /tmp/out/$id 2>&1; done
`,
  control: `
(cd template && bash /tmp/state > /tmp/before)
for id in $(ls /tmp/attempts); do
  rm -rf /tmp/case
  cp -a template /tmp/case
  (
    cd /tmp/case
    for number in $(ls /tmp/attempts/$id); do bash /tmp/run $number $id; done
    bash /tmp/state | cmp -s - /tmp/before || touch /tmp/out/$id.changed
  )
done
chmod -R u+rwX /tmp/case
rm -rf /tmp/case
`,
} as const;

/**
 * Runs the attempts in one service of this user by the agent `build`, and before them as a control by the agent `free`, which may do
 * everything.
 */
export async function runAttempts(service: Service, attempts: Attempts, uid = process.getuid?.() ?? 0) {
  const all = attempts.map((attempt, i) => ({
    id: String(i).padStart(3, "0"),
    isSingle: typeof attempt === "string",
    lines: [attempt].flat(),
  }));
  const template = join(service.data, "../template");
  mkdirSync(template);
  execFileSync("/bin/bash", ["-c", makeFixture], { cwd: template, stdio: ["ignore", "ignore", "inherit"] });
  execFileSync("chown", ["-R", String(uid), template]);
  const expected = await runControls(service, template, all, uid);
  const masked = await openRun(service, "build", all, uid);
  const changed = new Map<string, boolean>();
  const reset = () => {
    emptyDirectory(service.workspace);
    copy(template, service.workspace);
    return stateOf(service.workspace);
  };
  const step = (ids: readonly string[], number: number) => masked.run(`bash /tmp/run ${number} ${ids.join(" ")}`);
  const before = reset();
  // A long line is read in a thread, for which a busy machine may take too long.
  await step([], 0);
  const haveChanged = stateOf(service.workspace) !== before;
  for (const { id, isSingle, lines } of all) {
    if (isSingle) changed.set(id, haveChanged);
    else {
      const own = reset();
      for (const number of lines.keys()) await step([id], number);
      changed.set(id, stateOf(service.workspace) !== own);
    }
  }
  const found = await masked.outcomes();
  const outcome = (id: string, lines: readonly string[], { printed, changed }: Outcomes): Attempted => ({
    attempt: lines.join(" ⏎ "),
    printed: printed.get(id) ?? "",
    hasChanged: changed.has(id),
  });
  return {
    control: all.map(({ id, lines }) => outcome(id, lines, expected)),
    masked: all.map(({ id, lines }) => ({ ...outcome(id, lines, found), hasChanged: changed.get(id) ?? false })),
  };
}

async function runControls(service: Service, template: string, all: readonly NumberedAttempt[], uid: number) {
  const controls = await openRun(service, "free", all, uid);
  copy(template, join(service.workspace, "template"));
  await controls.run("bash /tmp/control");
  return await controls.outcomes();
}

interface NumberedAttempt {
  readonly id: string;
  readonly isSingle: boolean;
  readonly lines: readonly string[];
}

const isEnd = (event: SessionEvent["event"]) =>
  event.case === "part" && (event.value.state.case === "completed" || event.value.state.case === "error");

/** Outputs of attempts by ID, and the IDs of those that changed something. */
interface Outcomes {
  readonly printed: ReadonlyMap<string, string>;
  readonly changed: ReadonlySet<string>;
}

/** Opens a session of an agent, and lays the attempts into its temporary directory, where no attempt finds them. */
async function openRun(service: Service, agent: string, all: readonly NumberedAttempt[], uid: number) {
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession({ agent });
  let calls = 0;
  const run = async (command: string) => {
    calls += 1;
    // All attempts of a kind are one command, which takes minutes on a busy machine.
    const input = { command, timeout: 500_000 };
    const call = { sessionId, callId: `call${calls}`, agent, tool: "bash", input };
    const events = read(tools.executeTool(call));
    const last = await events.find(({ event }) => event.case === "permissionAsked" || isEnd(event));
    const { state } = last.event.case === "part" ? last.event.value : {};
    if (state?.case !== "completed")
      throw new Error(`${command} did not run: ${toJsonString(SessionEventSchema, last)}`);
  };
  const { workspace } = service;
  emptyDirectory(workspace);
  for (const [name, script] of Object.entries(scripts)) writeFileSync(join(workspace, name), script);
  writeFileSync(join(workspace, "singles"), all.flatMap(({ id, isSingle }) => (isSingle ? id : [])).join(" "));
  for (const { id, lines } of all) {
    mkdirSync(join(workspace, "attempts", id), { recursive: true });
    for (const [i, line] of lines.entries())
      writeFileSync(join(workspace, "attempts", id, String(i)), `echo '${startMark}'\n${line}\n`);
  }
  execFileSync("chown", ["-R", String(uid), workspace]);
  await run("cp -r * /tmp/ && mkdir /tmp/out");
  emptyDirectory(workspace);
  return {
    run,
    async outcomes(): Promise<Outcomes> {
      emptyDirectory(workspace);
      await run("cp -r /tmp/out out");
      const names = readdirSync(join(workspace, "out"));
      const texts = names.filter((name) => !name.endsWith(".changed"));
      return {
        printed: new Map(texts.map((name) => [name, readFileSync(join(workspace, "out", name), "latin1")])),
        changed: new Set(names.filter((name) => name.endsWith(".changed")).map((name) => name.slice(0, -8))),
      };
    },
  };
}

function copy(from: string, to: string): void {
  execFileSync("cp", ["-a", `${from}/.`, to]);
}

const stateOf = (cwd: string) => execFileSync("/bin/bash", ["-c", printState], { cwd }).toString();
