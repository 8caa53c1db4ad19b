import { clone, toJson } from "@bufbuild/protobuf";
import { ToolRegistration, type WorkerTool, WorkerToolSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { canonicalJson } from "../../core/canonical-json.ts";
import type { WorkerRights } from "../../core/principal.ts";
import { lentPermissions } from "../../core/worker-rights.ts";
import { wildcard } from "../../policy/wildcard.ts";
import { schemaProblem } from "./schema-safety.ts";
import { templateProblem } from "./templates.ts";

/** The reason why a tool is not offered. */
export interface DeclarationProblem {
  registration: ToolRegistration;
  message: string;
}

/** Checks if a permission belongs to the service: a tool of a worker must not ask it, since rules may allow it by default. */
export type IsClosed = (permission: string) => boolean;

/** Returns what a declaration says, as text: everything but what only limits its work. */
export function textOfDeclaration(declared: WorkerTool): string {
  const said = clone(WorkerToolSchema, declared);
  delete said.queueMs;
  said.maxConcurrent = 0;
  return canonicalJson(toJson(WorkerToolSchema, said));
}

/** Finds out why a token may not bring a tool, or why the tool cannot be used; undefined if it may. */
export function declarationProblem(
  declared: WorkerTool,
  rights: WorkerRights,
  isClosed: IsClosed,
): DeclarationProblem | undefined {
  const { name, permissions } = declared;
  if (!matches(name, rights.tools))
    return notYours(`the token may not bring the tool "${name}", only ${rights.tools.join(", ")}`);
  const closed = permissions.find(({ permission }) => !mayAsk(permission, name, rights, isClosed))?.permission;
  if (closed !== undefined) return notYours(askProblem(closed, name, isClosed));
  const invalid = invalidity(declared);
  return invalid === undefined ? undefined : { registration: ToolRegistration.INVALID, message: invalid };
}

/**
 * Checks if a tool may ask a permission: its own name, or one that its token names; one of the service's only if the token names it
 * without wildcards, since rules may allow it by default.
 */
export function mayAsk(permission: string, tool: string, { permissions }: WorkerRights, isClosed: IsClosed): boolean {
  if (permission === tool) return true;
  if (isClosed(permission)) return lentPermissions.includes(permission) && permissions.includes(permission);
  return matches(permission, permissions);
}

/** Says why a tool may not ask a permission. */
export function askProblem(permission: string, tool: string, isClosed: IsClosed): string {
  const asked = `the tool "${tool}" asks the permission "${permission}"`;
  if (!isClosed(permission))
    return `${asked}, which the permissions of its token do not name; ask "${tool}", or a permission of the token`;
  const next = lentPermissions.includes(permission)
    ? `name "${permission}" in the permissions of its token, or ask`
    : "ask";
  return `${asked}, which belongs to the service; ${next} "${tool}"`;
}

/** Checks if a name matches one of the patterns. */
export function matches(name: string, patterns: readonly string[]): boolean {
  return patterns.some((pattern) => wildcard(name, pattern));
}

function notYours(message: string): DeclarationProblem {
  return { registration: ToolRegistration.NOT_YOURS, message };
}

function invalidity(declared: WorkerTool): string | undefined {
  const { description, inputSchema = {}, outputSchema } = declared;
  if (description === "") return "it has no description; write one for models";
  const field = fieldsOfProcesses.find((name) => declared[name] !== empty[name] && declared[name] !== undefined);
  if (field !== undefined) return `its field ${field} is only for tool processes; leave it out`;
  if (inputSchema.type !== "object") return 'its input_schema is not that of an object; write "type": "object"';
  const input = schemaProblem(inputSchema);
  if (input !== undefined) return `input_schema: ${input}`;
  const output = outputSchema && schemaProblem(outputSchema);
  if (output !== undefined) return `output_schema: ${output}`;
  return templateProblem(declared);
}

const empty = {
  inits: false,
  coversBody: false,
  experimental: false,
  changeForm: "",
  source: "",
  file: "",
  asks: undefined,
};
const fieldsOfProcesses = ["inits", "coversBody", "experimental", "changeForm", "source", "file", "asks"] as const;
