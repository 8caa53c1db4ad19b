import type { MessageInitShape } from "@bufbuild/protobuf";
import { Argument, type Command } from "commander";
import {
  type StopRecord,
  StopRecordSchema,
  StopResponseSchema,
  type StopTargetSchema,
} from "../../../gen/opencode/tool/v1/operator_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { momentOf } from "../view/words.ts";

/** Defines `toolgate stop`. */
export function defineStop(command: Command, context: CliContext): void {
  defineTarget(command)
    .option("-r, --reason <text>", "why, for people and the audit", "")
    .action((kind: Kind | undefined, name: string | undefined, { reason }: { reason: string }) =>
      withServer(context, command, "approver", async ({ operator }, screen) => {
        if (kind === undefined) {
          const { stops } = await operator.listStops({});
          for (const stop of stops) screen.show(StopRecordSchema, stop, (paint) => [stopLine(stop, paint)]);
          if (stops.length === 0) screen.note("nothing is stopped");
          return;
        }
        const stopped = await operator.stop({ target: targetOf("stop", kind, name), reason });
        screen.show(StopResponseSchema, stopped, (paint) => [
          ...(stopped.stop ? [stopLine(stopped.stop, paint)] : []),
          `calls rejected: ${stopped.rejected}, cancelled: ${stopped.cancelled}`,
        ]);
        screen.note(`\`toolgate resume ${[kind, name].filter(Boolean).join(" ")}\` lets calls start again`);
      }),
    );
}

/** Defines `toolgate resume`. */
export function defineResume(command: Command, context: CliContext): void {
  defineTarget(command).action((kind: Kind | undefined, name: string | undefined) =>
    withServer(context, command, "approver", async ({ operator }, screen) => {
      if (kind === undefined) throw unnamed("resume");
      const { stop } = await operator.resume({ target: targetOf("resume", kind, name) });
      if (stop) screen.show(StopRecordSchema, stop, (paint) => [`resumed  ${stopLine(stop, paint)}`]);
      else screen.note("it was not stopped; `toolgate stop` lists what is");
    }),
  );
}

const kinds = ["agent", "session", "all"] as const;
type Kind = (typeof kinds)[number];

function defineTarget(command: Command): Command {
  return command
    .addArgument(new Argument("[kind]", "an agent, a session with its descendants, or everything").choices(kinds))
    .argument("[name]", "the name of the agent, or the id of the session");
}

function targetOf(
  command: "stop" | "resume",
  kind: Kind,
  name: string | undefined,
): MessageInitShape<typeof StopTargetSchema> {
  if (kind === "all") return { target: { case: "all", value: true } };
  if (name === undefined) throw unnamed(command);
  return { target: kind === "agent" ? { case: "agent", value: name } : { case: "sessionId", value: name } };
}

function unnamed(command: "stop" | "resume"): CommandError {
  const use = `use \`toolgate ${command} agent NAME\`, \`session ID\` or \`all\``;
  return new CommandError("it is not named what", use, exitCodes.usage);
}

function stopLine({ target, by, time, reason }: StopRecord, paint: Paint): string {
  const of = target?.target;
  const what =
    of?.case === "agent" ? `agent ${of.value}` : of?.case === "sessionId" ? `session ${of.value}` : "everything";
  const why = reason === "" ? "" : `  ${terminalLine(reason)}`;
  return `${terminalLine(what)}  ${paint("dim", `stopped by ${terminalLine(by)}, ${momentOf(time)}`)}${why}`;
}
