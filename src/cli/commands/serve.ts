import { type Command, Option } from "commander";
import { serveOptions } from "../../config/schema.ts";
import { withScreen } from "../command.ts";
import type { CliContext, ServeFlags } from "../context.ts";
import { announcement } from "../view/announcement.ts";

/** Defines `toolgate serve`. */
export function defineServe(command: Command, context: CliContext): void {
  for (const { flag, help, choices } of serveOptions) {
    const option = new Option(flag, help);
    command.addOption(choices.length === 0 ? option : option.choices(choices));
  }
  command.addHelpText("after", serveExamples).action((flags: ServeFlags) =>
    withScreen(context, command, async (screen) => {
      const service = await context.loadService();
      await service.serve(flags, (served) => {
        const { version } = context;
        const { url, dataDirectory } = served;
        for (const line of announcement(served, { version, ...screen })) screen.alert(line);
        if (!screen.json) return;
        const code = served.createSignInCode();
        const first = { url, data: dataDirectory, version, ...(code !== undefined && { sign_in_code: code }) };
        screen.write(`${JSON.stringify(first)}\n`);
      });
      return undefined;
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
