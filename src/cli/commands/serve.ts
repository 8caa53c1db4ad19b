import { type Command, Option } from "commander";
import { serveOptions } from "../../config/schema.ts";
import { withScreen } from "../command.ts";
import type { CliContext, Served, ServeFlags } from "../context.ts";
import type { Screen } from "../terminal/screen.ts";
import { commandLine, signInLink } from "../view/words.ts";

/** Defines `toolgate serve`. */
export function defineServe(command: Command, context: CliContext): void {
  for (const { flag, help, choices } of serveOptions) {
    const option = new Option(flag, help);
    command.addOption(choices.length === 0 ? option : option.choices(choices));
  }
  command.addHelpText("after", serveExamples).action((flags: ServeFlags) =>
    withScreen(context, command, async (screen) => {
      const service = await context.loadService();
      await service.serveUntilStopped(flags, (served) => {
        const { version } = context;
        const { url, dataDirectory } = served;
        for (const line of announcement(served, { version, ...screen })) screen.alert(line);
        if (!screen.json) return;
        const code = served.createSignInCode();
        const first = { url, data: dataDirectory, version, ...(code !== undefined && { sign_in_code: code }) };
        screen.write(`${JSON.stringify(first)}\n`);
      });
    }),
  );
}

const serveExamples = `
Examples:
  toolgate serve
  toolgate serve --workspace ~/project --unattended deny
  toolgate serve --listen 127.0.0.1:8000 --data /var/lib/toolgate --config toolgate.toml
  toolgate serve --listen 0.0.0.0:7420 --tls-cert server.pem --tls-key server.key

Agents find their token in tokens/caller of the data directory. People sign in with the link that the terminal shows: it has a
one-time code, for the console or for \`toolgate login\`. Without a terminal: \`toolgate token create --role approver\`. --json
prints the code as sign_in_code.`;

/** The lines with which a server starts: its address, its workspaces, the console, and a first call to try. */
function announcement(
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
