import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { Command } from "commander";
import {
  type ToolAnnotations,
  type ToolDefinition,
  ToolDefinitionSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalLines } from "../terminal/terminal-safe.ts";

/** Defines `toolgate tools`. */
export function defineTools(command: Command, context: CliContext): void {
  command
    .description("list the tools, or show one with its fields")
    .argument("[name]", "the tool to show")
    .option("--agent <name>", "what this agent may see (default: build)")
    .action((name: string | undefined, { agent = "" }: { agent?: string }) =>
      withServer(context, command, "caller", async (server, screen) => {
        const pages = await Array.fromAsync(pagesOf((page) => server.tools.listTools({ ...page, agent })));
        const tools = pages.flatMap((page) => page.tools);
        const problems = pages.flatMap((page) => page.problems);
        const [shown, linesOf] = name === undefined ? [tools, listLines] : [[named(tools, name)], wholeLines];
        for (const tool of shown) screen.show(ToolDefinitionSchema, tool, (paint) => linesOf(tool, paint));
        for (const { path, line, reason } of problems) {
          screen.alert(`problem: ${terminalLine(path)}${line === 0 ? "" : `:${line}`}: ${terminalLine(reason)}`);
        }
      }),
    );
}

function named(tools: readonly ToolDefinition[], name: string): ToolDefinition {
  const tool = tools.find((tool) => tool.name === name);
  if (tool) return tool;
  throw new CommandError(
    `no tool is named ${terminalLine(name)}`,
    `there is ${tools.map(({ name }) => terminalLine(name)).join(", ") || "none that this agent may see"}`,
    exitCodes.usage,
  );
}

function listLines({ name, description, inputSchema }: ToolDefinition, paint: Paint): string[] {
  const fields = fieldsOf(inputSchema).map(({ name, required }) => (required ? name : `${name}?`));
  const first = terminalLine(/^.*?(?:\.(?=\s)|$)/m.exec(description)?.[0] ?? "");
  return [`${paint("bold", terminalLine(name))}  ${paint("dim", `{ ${fields.join(", ")} }`)}`, `  ${first}`];
}

function wholeLines(tool: ToolDefinition, paint: Paint): string[] {
  const fields = fieldsOf(tool.inputSchema);
  return [
    `${paint("bold", terminalLine(tool.name))}  ${paint("dim", hintWords(tool.annotations))}`,
    ...terminalLines(tool.description).map((line) => `  ${line}`),
    "",
    ...fields.map(({ name, type, required, description }) =>
      `  ${paint("cyan", required ? name : `${name}?`)}  ${paint("dim", type)}  ${description}`.trimEnd(),
    ),
  ];
}

function hintWords(annotations: ToolAnnotations | undefined): string {
  if (!annotations) return "";
  const { readOnly, idempotent, destructive, openWorld } = annotations;
  const words = [
    readOnly && "changes nothing",
    idempotent && "repeatable",
    destructive && "may remove or overwrite",
    openWorld && "reaches outside",
  ];
  return words.filter((word) => word !== false).join(", ");
}

interface Field {
  name: string;
  type: string;
  required: boolean;
  description: string;
}

/** The fields of an object schema; a schema of another shape has none that can be listed. */
function fieldsOf(schema: JsonObject | undefined): Field[] {
  const required = schema?.required;
  return Object.entries(objectOf(schema?.properties)).map(([name, value]) => {
    const { type, description } = objectOf(value);
    return {
      name: terminalLine(name),
      type: typeof type === "string" ? terminalLine(type) : "any",
      required: Array.isArray(required) && required.includes(name),
      description: typeof description === "string" ? terminalLine(description) : "",
    };
  });
}

function objectOf(value: JsonValue | undefined): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}
