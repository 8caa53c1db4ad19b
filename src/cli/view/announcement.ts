import type { Served } from "../context.ts";
import type { Screen } from "../terminal/screen.ts";
import { signInLink } from "./sign-in-link.ts";

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
    `  console    ${consoleWords(served, io.stderr.isTTY === true)}`,
    ...(unattended === "deny" ? ["  unattended calls that need approval are denied"] : []),
    ...(isOpenToAll ? [paint.err("red", openToAll)] : []),
    "",
    "Try it:",
    `  curl -s ${url}/opencode.tool.v1.ToolService/CallTool${options} -H "Content-Type: application/json" -d '{"tool":"echo","input":{"text":"hello"}}'`,
    "",
  ];
}

/** The address of the console. The link that signs in is only for a person at this terminal; a log gets the token's file. */
function consoleWords({ url, approverToken }: Served, isTerminal: boolean): string {
  if (approverToken === undefined) return `${url}/`;
  return isTerminal
    ? signInLink(url, approverToken.value)
    : `${url}/  (sign in with the token in ${approverToken.file})`;
}

const openToAll =
  "  No token is required (--insecure-no-auth): anyone on this machine, the agent included, can call and approve.";
