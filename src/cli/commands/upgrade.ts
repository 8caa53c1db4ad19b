import type { Command } from "commander";
import { pagesOf } from "../../core/pages-of.ts";
import { countOf } from "../../view/quantities.ts";
import { withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliContext, LocalService, TableFlags } from "../context.ts";
import { type CheckFinding, failedCheck, findingsOf, ok, warning, writeFindings } from "../view/findings.ts";

/** Built-in tools of earlier versions. A version that removes one adds its name. */
const removedTools: ReadonlySet<string> = new Set(["lsp_prepare_rename", "lsp_code_action_resolve", "lsp_servers"]);

/** Defines `toolgate upgrade`. */
export function defineUpgrade(command: Command, context: CliContext): void {
  command
    .description(
      "Say what this version changes for a service that runs an earlier one: its configuration, store, waiting calls and rules, each with the next step. Nothing is changed, and no call runs. Ends with 1 if the upgrade would fail",
    )
    .requiredOption("--check", "only say it: the upgrade itself is a start of this version")
    .option("--config <file>", "the configuration of the service (default: what `toolgate serve` would read)")
    .option("--data <dir>", "the data directory of the service (default: that of the configuration)")
    .option("--backup <file>", "a backup of the service, with which this version repeats the recorded decisions")
    .addHelpText("after", examples)
    .action(({ backup, config, data }: TableFlags & { backup?: string }) =>
      withServer(context, command, "approver", async (server, screen) => {
        const service = await context.loadService();
        const flags: TableFlags = { ...(config !== undefined && { config }), ...(data !== undefined && { data }) };
        const findings = findingsOf(server, {
          config: () => configFindings(service, config),
          store: () => storeFindings(service, flags, server, context.version),
          calls: () => callFindings(server),
          rules: () => ruleFindings(service, flags, backup),
        });
        return await writeFindings(findings, screen);
      }),
    );
}

async function configFindings(service: LocalService, named: string | undefined): Promise<CheckFinding[]> {
  const { file, findings } = await service.checkConfiguration(named);
  if (findings.length === 0) return [ok("config", `${file} is read as it is`)];
  const next = "correct it, then check again";
  return findings.map(({ severity, line, message }) =>
    (severity === "error" ? failedCheck : warning)("config", `${file}:${line ?? 1}: ${message}`, next),
  );
}

/** Compares the formats: replicas with one format work on one store, and a higher one is written at the first start. */
async function storeFindings(
  service: LocalService,
  flags: TableFlags,
  { tools }: ServerConnection,
  version: string,
): Promise<CheckFinding[]> {
  const { version: now, format } = await tools.getServerInfo({});
  const { format: next, isShared } = await service.formatOfStore(flags);
  const named = format === 0 ? "a format without number" : `format ${format}`;
  const from = `${now} with ${named}, this is ${version} with format ${next}`;
  if (format === next) {
    const step = isShared ? "replicas are replaced one by one, also back" : "stop it, then start this one, also back";
    return [ok("store", `${from}: both work on one store, so ${step}`)];
  }
  if (format > next) {
    const step = "install the version of the service, or a later one";
    return [failedCheck("store", `${from}, which refuses a later one`, step)];
  }
  const step = isShared
    ? "stop all replicas, then start this version (in Kubernetes --set strategy=Recreate)"
    : "toolgate backup FILE, stop the service, then start this version";
  return [warning("store", `${from}, from whose first start on the earlier one refuses the store`, step)];
}

/** Lists the calls that wait for an answer, and for a tool that is gone. */
async function callFindings({ permissions, tools }: ServerConnection): Promise<CheckFinding[]> {
  const pages = await Array.fromAsync(pagesOf((page) => permissions.listPermissions(page)));
  const requests = pages.flatMap((page) => page.permissions);
  const gone: CheckFinding[] = [];
  for (const { view, tool, sessionId, id } of requests) {
    const callId = tool?.callId ?? "";
    // Requests of 0.1.0 have no view: only their parts name the tool.
    const name = view?.tool ?? (await tools.getToolPart({ sessionId, callId })).part?.tool ?? "";
    if (!removedTools.has(name)) continue;
    const fact = `call ${callId} of ${sessionId} waits for ${name}, which is gone: it ends STALE_TOOL`;
    gone.push(warning("calls", fact, `toolgate reply ${id} once, or toolgate reject ${sessionId}, before the upgrade`));
  }
  const outcome = requests.every(({ view }) => view) ? "which stay so" : "asked again once the new version runs";
  return [ok("calls", `${countOf(requests.length - gone.length, "request")} open, ${outcome}`), ...gone];
}

/** Repeats the recorded decisions of a backup with this version and the rules of the configuration. */
async function ruleFindings(
  service: LocalService,
  flags: TableFlags,
  backup: string | undefined,
): Promise<CheckFinding[]> {
  if (backup === undefined) {
    if ((await service.formatOfStore(flags)).isShared)
      return [warning("rules", "not repeated: only SQLite has backups")];
    return [warning("rules", "not repeated", "toolgate backup FILE, then add --backup FILE")];
  }
  const { judged, otherwise, notJudged } = await service.repeatBackup(flags, backup);
  const sum = notJudged.reduce((total, { decisions }) => total + decisions, 0);
  const why = notJudged.length === 0 ? "" : `: ${notJudged.map(({ reason }) => reason).join("; ")}`;
  const next = "toolgate rules, and tests of what must not change ([[permission_test]]), before the upgrade";
  return [
    ok("rules", `${countOf(judged, "recorded decision")} repeated`),
    ...(sum === 0 ? [] : [(judged > 0 ? ok : warning)("rules", `${sum} cannot be repeated${why}`, asService)]),
    ...otherwise.map(({ reason, decisions }) => warning("rules", `${countOf(decisions, "decision")}: ${reason}`, next)),
  ];
}

const asService = "run this as the user of the service, on its machine, with its --config and --data";

const examples = `
Examples:
  toolgate backup --token-file admin.token before.tar
  npx toolgate@NEXT upgrade --check --config /etc/toolgate/toolgate.toml --backup before.tar`;
