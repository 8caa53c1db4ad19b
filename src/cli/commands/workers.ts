import { create } from "@bufbuild/protobuf";
import type { Command } from "commander";
import { ToolRegistration } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import {
  type ListWorkersResponse,
  ListWorkersResponseSchema,
  type WorkerFleet,
  type WorkerProcess,
} from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { fleetSummary, processesOf, workerState, workerTokenWords } from "../../view/workers.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { commandLine, momentOf } from "../view/words.ts";

/** Defines `toolgate workers`. */
export function defineWorkers(command: Command, context: CliContext): void {
  command
    .description("list the fleets of processes on other machines that bring tools, with their builds and what they run")
    .action(() =>
      withServer(context, command, "approver", async ({ workers: service }, screen) => {
        const pages = await Array.fromAsync(pagesOf((page) => service.listWorkers(page)));
        const workers = pages.flatMap((page) => page.workers);
        const fleets = pages.flatMap((page) => page.fleets);
        const listed = create(ListWorkersResponseSchema, { workers, fleets });
        screen.show(ListWorkersResponseSchema, listed, (paint) => workerLines(listed, paint));
        if (listed.fleets.length === 0)
          screen.note(
            `no worker was connected yet; create a token with \`${commandLine("toolgate", ...workerTokenWords)}\`, and start a worker with it`,
          );
      }),
    );
}

/** Writes the fleets with their processes for people. */
export function workerLines({ fleets, workers }: Pick<ListWorkersResponse, "fleets" | "workers">, paint: Paint) {
  return fleets.flatMap((fleet) => {
    const own = processesOf(fleet, workers);
    return [...fleetLines(fleet, own, paint), ...own.flatMap((process) => processLines(process, paint))];
  });
}

function fleetLines(fleet: WorkerFleet, own: readonly WorkerProcess[], paint: Paint): string[] {
  const { worker, principal, tools, seen } = fleet;
  const isServed = own.some((process) => workerState(process) === "connected");
  const summary = paint(isServed ? "green" : "yellow", fleetSummary(fleet, own));
  const facts = [`token ${principal}`, ...(own.length === 0 ? [`last seen at ${momentOf(seen)}`] : [])].join(", ");
  return [
    `${paint("bold", terminalLine(worker))}  ${summary}  ${paint("dim", terminalLine(facts))}`,
    ...(tools.length === 0 ? [] : [`  tools ${terminalLine(tools.join(", "))}`]),
  ];
}

const colors = { connected: "green", draining: "yellow", away: "red" } as const;

function processLines(process: WorkerProcess, paint: Paint): string[] {
  const { instanceId, buildId, generation, sdk, capacity, running, seen, tools, replica, workspaces } = process;
  const state = workerState(process);
  const facts = [
    `runs ${running} of ${capacity}`,
    ...(buildId === "" ? [] : [`build ${buildId}`]),
    ...(generation === 0n ? [] : [`generation ${generation}`]),
    `workspaces ${workspaces.join(", ")}`,
    ...(sdk === "" ? [] : [sdk]),
    `last seen at ${momentOf(seen)}`,
    `replica ${replica}`,
  ];
  const refused = tools.filter(({ registration }) => registration !== ToolRegistration.REGISTERED);
  return [
    `  ${paint(colors[state], state)}  ${terminalLine(instanceId)}`,
    `    ${paint("dim", terminalLine(facts.join(", ")))}`,
    ...refused.map(({ name, message }) => `    ${paint("red", terminalLine(name))}  ${terminalLine(message)}`),
  ];
}
