import { Argument, type Command } from "commander";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { askLines } from "./ask-view.ts";
import { openAsks } from "./asks.ts";
import { withServer } from "./command.ts";
import type { Connection } from "./connection.ts";
import { exitCodes } from "./exit-codes.ts";
import { CommandError, UsageError } from "./failure.ts";
import { sendReply } from "./reply.ts";
import type { Screen } from "./screen.ts";

/** Adds `toolgate reply`. */
export function addReply(program: Command): void {
  program
    .command("reply")
    .description("answer an ask; the first answer wins")
    .argument("<id>", "the ask; `toolgate asks` lists them")
    .addArgument(
      new Argument("<answer>", "once: this call only; always: save an offer, too; reject: refuse this call").choices(
        Object.keys(replies),
      ),
    )
    .option("-m, --message <text>", "with reject: what the model is told")
    .option("--offer <id>", "with always: the offer to save, by id or by its number in the list (default: the first)")
    .option("--session <id>", "the session of the ask (default: it is looked for)")
    .addHelpText("after", examples)
    .action((id: string, word: keyof typeof replies, options: ReplyOptions, command: Command) =>
      withServer(command, "approver", (server, screen) => answerAsk(server, screen, id, word, options)),
    );
}

interface ReplyOptions {
  message?: string;
  offer?: string;
  session?: string;
}

async function answerAsk(
  server: Connection,
  screen: Screen,
  id: string,
  word: keyof typeof replies,
  { message, offer, session }: ReplyOptions,
): Promise<undefined> {
  if (message !== undefined && word !== "reject")
    throw new UsageError("--message is only for reject", "leave it out, or reject");
  if (offer !== undefined && word !== "always")
    throw new UsageError("--offer is only for always", "leave it out, or answer always");
  const ask = await findAsk(server, id, session);
  // A closed ask is answered all the same if its session is named: the server then says who won.
  const ref = ask ?? { id, sessionId: session ?? "", digest: "" };
  const offerId = ask?.offers[Number(offer) - 1]?.id ?? offer;
  if (ask) for (const line of askLines(ask, screen.paint.err, { now: Date.now() })) screen.note(line);
  await sendReply(server.permissions, ref, {
    reply: replies[word],
    ...(message !== undefined && { message }),
    ...(offerId !== undefined && { offerId }),
  });
  const { err } = screen.paint;
  screen.note(word === "reject" ? err("red", "✗ rejected") : err("green", `✓ approved ${word}`));
}

async function findAsk(
  server: Connection,
  id: string,
  session: string | undefined,
): Promise<PermissionRequest | undefined> {
  for await (const ask of openAsks(server, session ?? "")) if (ask.id === id) return ask;
  if (session !== undefined) return undefined;
  throw new CommandError(
    `no ask ${id} is open: it was answered, it expired, or it is not yours to see`,
    "see what is open with `toolgate asks`, or name its --session to learn how it ended",
    exitCodes.usage,
  );
}

const replies = { once: PermissionReply.ONCE, always: PermissionReply.ALWAYS, reject: PermissionReply.REJECT } as const;

const examples = `
Examples:
  toolgate reply per_01J9 once
  toolgate reply per_01J9 always --offer 2
  toolgate reply per_01J9 reject -m "use the staging database"`;
