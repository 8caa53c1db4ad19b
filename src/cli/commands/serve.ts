import { type Command, Option } from "commander";
import { withScreen } from "../command.ts";

/** What a server is started with; what is absent comes from the configuration file, else from the defaults. */
export interface ServeFlags {
  listen?: string;
  workspace?: string;
  data?: string;
  config?: string;
  tlsCert?: string;
  tlsKey?: string;
  tlsClientCa?: string;
  insecureNoAuth?: boolean;
  allowInsecureListen?: boolean;
  unattended?: "wait" | "deny";
  logLevel?: "debug" | "info" | "warn" | "error";
}

/** A server that runs, as --json tells it. */
export interface Served {
  url: string;
  data: string;
  version: string;
}

/** Adds `toolgate serve`. */
export function addServe(
  program: Command,
  serve: (flags: ServeFlags, onStart: (served: Served) => void) => Promise<void>,
): void {
  program
    .command("serve")
    .description("start the service")
    .option("--listen <host:port>", "where to listen (default: 127.0.0.1:7420)")
    .option("--workspace <dir>", "the folder that tools work in, as the workspace `default` (default: the current one)")
    .option("--data <dir>", "where records, outputs and tokens are kept (default: $XDG_DATA_HOME/toolgate)")
    .option("--config <file>", "the configuration (default: $XDG_CONFIG_HOME/toolgate/toolgate.toml, if it is there)")
    .option("--tls-cert <file>", "speak TLS: the certificate and what leads to its root, PEM")
    .option("--tls-key <file>", "its private key, PEM")
    .option("--tls-client-ca <file>", "want client certificates (beside tokens) that this authority signed, PEM")
    .option("--insecure-no-auth", "want no token: anyone on this machine, the agent included, can call and approve")
    .option("--allow-insecure-listen", "listen beyond this machine without TLS, for use behind a proxy that has it")
    .addOption(
      new Option("--unattended <policy>", "what becomes of asks: wait for a person, or deny at once").choices([
        "wait",
        "deny",
      ]),
    )
    .addOption(new Option("--log-level <level>", "what to log").choices(["debug", "info", "warn", "error"]))
    .addHelpText("after", serveExamples)
    .action((options: ServeFlags, command: Command) =>
      withScreen(command, async (screen) => {
        await serve(options, (served) => {
          if (screen.json) screen.write(`${JSON.stringify(served)}\n`);
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

The first start leaves two tokens in the data folder, tokens/caller and tokens/approver; the other commands find them there.`;
