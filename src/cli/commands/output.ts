import type { Command } from "commander";
import { ReadToolOutputResponseSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { createSafeDecoder } from "../terminal/terminal-safe.ts";

/** Defines `toolgate output`. */
export function defineOutput(command: Command, context: CliContext): void {
  command
    .description(
      "Write a whole output or attachment to stdout: byte for byte into a file or pipe, made safe on a terminal",
    )
    .argument("<session>", "a session of the tree that it belongs to")
    .argument("<output>", "toolgate-output:ID, as a completed call names it")
    .action((sessionId: string, output: string, _options: object) =>
      withServer(context, command, "approver", async ({ tools }, screen) => {
        const decoder = createSafeDecoder({ colours: screen.coloured ? "keep" : "drop" });
        let offset = 0n;
        while (true) {
          const piece = await tools.readToolOutput({ sessionId, output, range: { case: "bytes", value: { offset } } });
          if (screen.json) screen.emit(ReadToolOutputResponseSchema, piece);
          else screen.write(screen.io.stdout.isTTY ? decoder.push(piece.data) : piece.data);
          offset += BigInt(piece.data.length);
          if (piece.end || piece.data.length === 0) return undefined;
        }
      }),
    );
}
