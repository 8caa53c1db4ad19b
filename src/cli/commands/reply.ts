import { create } from "@bufbuild/protobuf";
import { Argument, type Command, InvalidArgumentError } from "commander";
import { PermissionSettledSchema, Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  PermissionResponseSchema,
} from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { behalfWords, needWords, savableOffers } from "../../view/need.ts";
import { answersWords } from "../../view/outcomes.ts";
import { answerHint, questionLabel } from "../../view/questions.ts";
import { isRequestCut } from "../../view/view-lines.ts";
import { requestLink } from "../call/ask-prompt.ts";
import { readDuration, withServer } from "../command.ts";
import { type ServerConnection, serverWords } from "../connection/connection.ts";
import { type ReplyAnswer, sendReply } from "../connection/send-reply.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes, UsageError } from "../failure/command-error.ts";
import { openAsks } from "../inbox/print-asks.ts";
import { readJsonObject } from "../json-argument.ts";
import { parseAnswer } from "../question/parse-answer.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { askLines } from "../view/ask-view.ts";
import { settledWords } from "../view/settled.ts";
import { readFileTexts, shownWith } from "../view/whole-request.ts";
import { commandLine } from "../view/words.ts";

/** Defines `toolgate reply`. */
export function defineReply(command: Command, context: CliContext): void {
  command
    .argument("<id>", "the permission request; `toolgate asks` lists them")
    .addArgument(
      new Argument(
        "[answer]",
        "once: allow this call (implied by --answer); always: allow it and save an offer; reject: refuse this call, or dismiss its questions",
      ).choices(Object.keys(replies)),
    )
    .option(
      "-a, --answer <text>",
      "the answer to a question, repeated for each one in order: the number or label of an option, several with commas where it takes several, or free text (=TEXT if it looks like an option); empty for no answer",
      (text: string, before: string[] = []) => [...before, text],
    )
    .option("-m, --message <text>", "with reject: advice for the model")
    .option("--reason <text>", "why, for people and the audit; some requests need it")
    .option("--offer <id>", "with always: the offer to save, by id or by its number in the list (default: the first)")
    .option("--for <time>", "with always: how long the grant lives at most, such as 30m, 8h or 7d", readDuration)
    .option("--times <count>", "with always: how many further calls it covers, at most as many as offered", readTimes)
    .option("--edit <json>", "with once: arguments that replace the call's; a JSON object, @FILE, or - for stdin")
    .option("--whole-call", "answer also the requests that the call opened together with this one")
    .option("--session <id>", "the session of the request (default: it is looked up)")
    .addHelpText("after", examples)
    .action((id: string, word: Word | undefined, options: ReplyOptions) =>
      withServer(context, command, "approver", (server, screen) =>
        answerAsk(server, screen, id, word ?? wordFor(options), options),
      ),
    );
}

type Word = keyof typeof replies;

interface ReplyOptions {
  answer?: readonly string[];
  message?: string;
  reason?: string;
  offer?: string;
  for?: number;
  times?: number;
  edit?: string;
  wholeCall?: boolean;
  session?: string;
}

async function answerAsk(
  server: ServerConnection,
  screen: Screen,
  id: string,
  word: Word,
  { session, ...options }: ReplyOptions,
): Promise<void> {
  const { answer: typed, message, reason, offer, for: lifeMs, times, edit, wholeCall } = options;
  checkOnlyFor(word, options);
  const input = edit === undefined ? undefined : await readJsonObject(edit, "the edited input", screen.io);
  const ask = await findAsk(server, id, session);
  // With --session, a closed request is answered all the same: the server then reports whose answer won.
  const ref = ask ?? { id, sessionId: session ?? "", digest: "" };
  const offerId = ask?.offers[Number(offer) - 1]?.id ?? offer;
  const texts = ask && !screen.json ? await readFileTexts(server, ask) : undefined;
  if (ask && texts) for (const line of askLines(ask, screen.paint.err, { now: Date.now(), texts })) screen.note(line);
  const answers = word === "reject" ? undefined : answersFor(ask, typed);
  if (ask && word === "always" && savableOffers(ask).length < ask.offers.length)
    throw new UsageError(`nothing is saved: ${terminalLine(behalfWords(ask) ?? "")}`, "answer once");
  if (ask && isRequestCut(ask) && word !== "reject" && input === undefined) throw onlyPartShown(ask, server.url);
  const answer: ReplyAnswer = {
    reply: replies[word],
    ...(message !== undefined && { message }),
    ...(reason !== undefined && { reason }),
    ...(answers !== undefined && { answers }),
    ...(offerId !== undefined && { offerId }),
    ...(input !== undefined && { input }),
    ...(wholeCall !== undefined && { wholeCall }),
    ...(lifeMs !== undefined && { expires: Date.now() + lifeMs }),
    ...(times !== undefined && { times }),
  };
  await sendReply(server.permissions, ref, { ...answer, shown: ask && texts ? shownWith(ask, texts) : Shown.UNKNOWN });
  const given = { ...answer, answers: [...(answers ?? [])], sessionId: ref.sessionId, permissionId: ref.id };
  if (screen.json) screen.emit(PermissionResponseSchema, create(PermissionResponseSchema, given));
  const { err } = screen.paint;
  const waiting = ask?.need && (await needLeft(server, ask.id));
  if (waiting !== undefined) return screen.note(err("yellow", `◌ your vote counts: ${terminalLine(waiting)}`));
  screen.note(word === "reject" ? err("red", "✗ rejected") : err("green", sentWords(word, answer)));
}

/** Says what a request waits for that is still open; undefined for one that is settled. */
async function needLeft({ permissions }: ServerConnection, permissionId: string): Promise<string | undefined> {
  const { permission, settled } = await permissions.getPermission({ permissionId });
  return permission && !settled ? needWords(permission) : undefined;
}

function sentWords(word: Word, { answers, input }: ReplyAnswer): string {
  if (answers)
    return `✓ answered: ${answersWords(create(PermissionSettledSchema, { answers: [...answers] }).answers, terminalLine)}`;
  return input ? "✓ edited; the new arguments ask again if they need approval" : `✓ approved ${word}`;
}

/** The answer that is meant where none is named. */
function wordFor({ answer }: ReplyOptions): Word {
  if (answer !== undefined) return "once";
  throw new UsageError(
    "no answer is given",
    `name one of ${Object.keys(replies).join(", ")}, or answer a question with --answer`,
  );
}

/** This command shows a request and answers it at once, so it approves nothing of which it shows only a part. */
function onlyPartShown(ask: PermissionRequest, url: string): CommandError {
  const { id, sessionId, preview } = ask;
  const change = preview?.url ?? "";
  return new CommandError(
    `${terminalSafe(id)} is not approved: it is longer than this command shows`,
    `read and approve it in \`toolgate inbox\` or at ${requestLink(url, ask)}${change === "" ? "" : `; the whole change: ${commandLine("toolgate", "output", sessionId, change, ...serverWords(url))}`}`,
    exitCodes.usage,
  );
}

/** Refuses options that belong to another answer. */
function checkOnlyFor(word: Word, options: ReplyOptions): void {
  const only = {
    answer: "once",
    message: "reject",
    offer: "always",
    for: "always",
    times: "always",
    edit: "once",
  } as const;
  for (const [option, answer] of Object.entries(only)) {
    if (!(option in options) || word === answer) continue;
    throw new UsageError(`--${option} is only for ${answer}`, `leave it out, or answer ${answer}`);
  }
}

function readTimes(text: string): number {
  const times = Number(text);
  if (Number.isInteger(times) && times >= 1 && times <= 1000) return times;
  throw new InvalidArgumentError("It must be a number from 1 to 1000.");
}

async function findAsk(
  server: ServerConnection,
  id: string,
  session: string | undefined,
): Promise<PermissionRequest | undefined> {
  for await (const ask of openAsks(server, session ?? "")) if (ask.id === id) return ask;
  if (session !== undefined) return undefined;
  throw new CommandError(
    `no permission request ${id} is open: it was answered, it expired, or your token may not see it`,
    "see what is open with `toolgate asks`, or name its --session to see its outcome",
    exitCodes.usage,
  );
}

const replies = { once: PermissionReply.ONCE, always: PermissionReply.ALWAYS, reject: PermissionReply.REJECT } as const;

const examples = `
Examples:
  toolgate reply per_01J9 once
  toolgate reply per_01J9 always --offer 2 --for 8h --times 5
  toolgate reply per_01J9 once --edit '{"command": "npm test"}'
  toolgate reply per_01J9 reject -m "use the staging database"
  toolgate reply per_01J9 --answer 2 --answer "SQLite, Redis" --answer "at 8 in the morning"`;

/** Reads the options `--answer` as answers to the questions of a request, one for each; undefined for a request without questions. */
function answersFor(ask: PermissionRequest | undefined, typed: readonly string[] | undefined): ReplyAnswer["answers"] {
  if (ask === undefined) return typed?.map((text) => ({ values: text === "" ? [] : [text] }));
  const { question: questions } = ask;
  if (questions.length === 0) {
    if (typed === undefined) return undefined;
    throw new UsageError(
      `${terminalSafe(ask.id)} asks no question`,
      "leave --answer out, and answer once, always or reject",
    );
  }
  if (typed?.length !== questions.length) {
    const labels = questions.map((each, i) => questionLabel(each, i, terminalLine)).join(", ");
    throw new UsageError(
      `${terminalSafe(ask.id)} asks ${questions.length} (${labels}), and ${typed?.length ?? 0} came`,
      "give --answer once for each question, in this order; reject dismisses them",
    );
  }
  return questions.map((each, i) => {
    const parsed = parseAnswer(each, typed[i] ?? "");
    if ("values" in parsed) return parsed;
    throw new UsageError(
      `--answer ${i + 1} (${questionLabel(each, i, terminalLine)}): ${parsed.problem}`,
      answerHint(each),
    );
  });
}

/** Defines `toolgate reject`. */
export function defineReject(command: Command, context: CliContext): void {
  command
    .argument("[session]", "the session")
    .option("--agent <name>", "only those of this agent; without a session, those of all its sessions", "")
    .option("-m, --message <text>", "advice for the model", "")
    .action((sessionId: string | undefined, { message, agent }: { message: string; agent: string }) =>
      withServer(context, command, "approver", async ({ permissions }, screen) => {
        const { settled } = await permissions.rejectPermissions({ sessionId: sessionId ?? "", agent, message });
        for (const end of settled) {
          screen.show(PermissionSettledSchema, end, (paint) => [
            `${terminalLine(end.permissionId)}  ${paint("dim", `call ${terminalLine(end.callId)}`)}  ${settledWords(end)}`,
          ]);
        }
        if (settled.length === 0) screen.note("no permission request is open");
      }),
    );
}
