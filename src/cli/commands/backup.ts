import { existsSync } from "node:fs";
import { type FileHandle, open, rename, rm } from "node:fs/promises";
import type { Command } from "commander";
import { withScreen, withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliContext, RestoredBackup } from "../context.ts";
import { UsageError } from "../failure/command-error.ts";
import { momentOf } from "../view/words.ts";

/** Defines `toolgate backup`. */
export function defineBackup(command: Command, context: CliContext): void {
  command
    .description(
      "Write the records and outputs of a running service to a file. The service goes on meanwhile. It takes a token with the role admin",
    )
    .argument("<file>", "the backup, a tar file; it must not exist")
    .addHelpText("after", backupHelp)
    .action((file: string, _options: object) =>
      withServer(context, command, "approver", async (server, screen) => {
        const bytes = await writeBackup(server, file);
        screen.result({ file, bytes }, () => [`${file}: ${bytes} bytes`]);
      }),
    );
}

/** Writes the backup under another name first, so that a file of this name is whole. */
async function writeBackup({ operator }: ServerConnection, file: string): Promise<number> {
  if (existsSync(file)) throw existing(file);
  const partial = `${file}.partial`;
  const written = await createFile(partial);
  let bytes = 0;
  try {
    for await (const { data } of operator.backup({}, { timeoutMs: 0 })) {
      await written.writeFile(data);
      bytes += data.byteLength;
    }
    await written.sync();
    // The rename would replace a file that was made meanwhile.
    await (await createFile(file)).close();
    await rename(partial, file);
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  } finally {
    await written.close();
  }
  return bytes;
}

/** Creates a file that did not exist: what another user put there gets nothing. */
async function createFile(file: string): Promise<FileHandle> {
  return await open(file, "wx", 0o600).catch((cause: unknown) => {
    throw cause instanceof Error && "code" in cause && cause.code === "EEXIST" ? existing(file, cause) : cause;
  });
}

const existing = (file: string, cause?: Error) =>
  new UsageError(`${file} exists already`, "remove it, or name a file that does not exist", { cause });

const backupHelp = `
Examples:
  toolgate token create --role admin --label backup --data /var/lib/toolgate > admin.token
  toolgate backup --token-file admin.token toolgate-monday.tar
  toolgate restore toolgate-monday.tar --data /var/lib/toolgate

The file has the database and the outputs. Copy toolgate.toml as well; credentials, logs and trusted workspaces stay in the data
directory. Records in Redis are backed up there: the error names the commands.`;

/** Defines `toolgate restore`. */
export function defineRestore(command: Command, context: CliContext): void {
  command
    .description(
      "Restore a backup into the data directory of a stopped service. What happened after the backup is unknown, so the store gets a new id, open calls end, open permission requests are withdrawn, and grants are suspended until `toolgate grants confirm`",
    )
    .argument("<file>", "the backup")
    .requiredOption("--data <dir>", "the data directory; the store in it is moved aside")
    .action((file: string, { data }: { data: string }) =>
      withScreen(context, command, async (screen) => {
        const service = await context.loadService();
        const restored = await service.restoreDirectory(file, data);
        screen.result(restored, () => restoredLines(restored));
      }),
    );
}

function restoredLines({ created, storeId, outputs, calls, grants, before }: RestoredBackup): string[] {
  return [
    `restored the backup of ${momentOf(created)} as the store ${storeId}`,
    `  ${outputs} outputs`,
    `  ${calls} open calls ended with EXECUTOR_LOST; their permission requests were withdrawn`,
    `  ${grants} grants are suspended: start the service, then \`toolgate grants\` and \`toolgate grants confirm\``,
    ...(before === undefined ? [] : [`  the store that was here is in ${before}`]),
  ];
}
