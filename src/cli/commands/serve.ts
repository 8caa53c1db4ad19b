import { type Command, Option } from "commander";
import { withScreen } from "../command.ts";
import type { CliContext, ServeFlags } from "../context.ts";
import { announcement } from "../view/announcement.ts";

/** Defines `toolgate serve`. */
export function defineServe(command: Command, context: CliContext): void {
  command
    .option("--listen <host:port>", "where to listen (default: 127.0.0.1:7420)")
    .option(
      "--workspace <dir>",
      "the directory that tools work in, as the workspace `default` (default: the current one)",
    )
    .option("--data <dir>", "where records, outputs and tokens are stored (default: $XDG_DATA_HOME/toolgate)")
    .option("--config <file>", "the configuration (default: $XDG_CONFIG_HOME/toolgate/toolgate.toml, if it exists)")
    .option("--tls-cert <file>", "serve TLS: the certificate and its chain, PEM")
    .option("--tls-key <file>", "its private key, PEM")
    .option("--tls-client-ca <file>", "require client certificates (as well as tokens) signed by this authority, PEM")
    .option("--insecure-no-auth", "require no token: anyone on this machine, the agent included, can call and approve")
    .option("--allow-insecure-listen", "listen beyond this machine without TLS, for use behind a proxy that has it")
    .option("--opencode", "answer clients of opencode's HTTP API too, as `[rest] enabled = true` does")
    .option("--new-store", "begin without records although the data directory has traces of a store that was lost")
    .addOption(
      new Option("--unattended <policy>", "permission requests wait for a person, or are denied at once").choices([
        "wait",
        "deny",
      ]),
    )
    .addOption(new Option("--log-level <level>", "what to log").choices(["debug", "info", "warn", "error"]))
    .addHelpText("after", serveExamples)
    .action((flags: ServeFlags) =>
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
