import type { Served } from "../context.ts";
import type { Screen } from "../terminal/screen.ts";
import { signInLink } from "./sign-in-link.ts";
import { commandLine } from "./words.ts";

/** The lines with which a server starts: its address, its workspaces, the console, and a first call to try. */
export function announcement(
  served: Served,
  { version, paint, io }: Pick<Screen, "paint" | "io"> & { version: string },
): string[] {
  const { url, workspaces, dataDirectory, isTls, isOpenToAll, unattended, callerTokenFile } = served;
  const token = callerTokenFile === undefined ? "$TOKEN" : `$(cat ${callerTokenFile})`;
  const options = `${isTls ? " --cacert CA.pem" : ""}${isOpenToAll ? "" : ` -H "Authorization: Bearer ${token}"`}`;
  return [
    `${paint.err("bold", "Toolgate")} ${version} is at ${paint.err("bold", url)}`,
    ...[...workspaces].map(([name, directory]) => `  workspace  ${name} = ${directory}`),
    `  data       ${dataDirectory}`,
    ...consoleLines(served, io.stderr.isTTY === true),
    ...(served.adoptedApprover ? [adopted] : []),
    ...served.warnings.map((warning) => `  warning    ${warning}`),
    ...(unattended === "deny" ? ["  unattended calls that need approval are denied"] : []),
    ...(isOpenToAll ? [paint.err("red", openToAll)] : []),
    "",
    "Try it:",
    `  curl -s ${url}/opencode.tool.v1.ToolService/CallTool${options} -H "Content-Type: application/json" -d '{"tool":"echo","input":{"text":"hello"}}'`,
    "",
  ];
}

/** The lines about the console. The link that signs in is only for a person at this terminal. */
function consoleLines({ url, dataDirectory, createSignInCode, isOpenToAll }: Served, isTerminal: boolean): string[] {
  if (isOpenToAll) return [`  console    ${url}/`];
  const code = isTerminal ? createSignInCode() : undefined;
  if (code !== undefined)
    return [`  console    ${signInLink(url, code)}`, "             (signs in once, within 10 minutes)"];
  const create = commandLine("toolgate", "token", "create", "--role", "approver", "--data", dataDirectory);
  return [`  console    ${url}/`, `  sign in    no terminal: run \`${create}\``];
}

const adopted =
  "  note       tokens/approver is deleted: its token stays valid, and only its hash is stored (credentials.json)";

const openToAll =
  "  No token is required (--insecure-no-auth): anyone on this machine, the agent included, can call and approve.";
