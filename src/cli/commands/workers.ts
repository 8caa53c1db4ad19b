import type { Command } from "commander";
import { ToolRegistration } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { type WorkerProcess, WorkerProcessSchema } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { momentOf } from "../view/words.ts";

/** Defines `toolgate workers`. */
export function defineWorkers(command: Command, context: CliContext): void {
  command
    .description("list the processes on other machines that bring tools, with their builds and what they run")
    .action(() =>
      withServer(context, command, "approver", async ({ workers: service }, screen) => {
        const { workers } = await service.listWorkers({});
        for (const worker of workers) screen.show(WorkerProcessSchema, worker, (paint) => processLines(worker, paint));
        if (workers.length === 0)
          screen.note(
            "no worker is connected; create a token with `toolgate token create --role worker --tool NAME`, and start a worker with it",
          );
        return undefined;
      }),
    );
}

/** Writes a process for people. */
function processLines(process: WorkerProcess, paint: Paint): string[] {
  const { worker, instanceId, buildId, generation, principal, sdk, capacity, running, seen, tools } = process;
  const { connected: isConnected, draining: isDraining, workspaces } = process;
  const [word, color] = isConnected ? (isDraining ? ["draining", "yellow"] : ["connected", "green"]) : ["away", "red"];
  const facts = [
    `runs ${running} of ${capacity}`,
    ...(buildId === "" ? [] : [`build ${buildId}`]),
    ...(generation === 0n ? [] : [`generation ${generation}`]),
    `token ${principal}`,
    `workspaces ${workspaces.join(", ")}`,
    ...(sdk === "" ? [] : [sdk]),
    `seen at ${momentOf(seen)}`,
  ];
  return [
    `${paint("bold", terminalLine(worker))}  ${paint(color as "green" | "yellow" | "red", word)}  ${terminalLine(instanceId)}`,
    `  ${paint("dim", terminalLine(facts.join(", ")))}`,
    ...tools.map(({ name, registration, message }) =>
      registration === ToolRegistration.REGISTERED
        ? `  ${paint("green", terminalLine(name))}`
        : `  ${paint("red", terminalLine(name))}  ${terminalLine(message)}`,
    ),
  ];
}
