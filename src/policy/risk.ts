import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Ask } from "../core/ask.ts";
import { visible } from "../core/visible.ts";
import { protectedFile } from "./protected-files.ts";
import { commandRisks, downloadsTo, runsDownloads, takesPartInDownload } from "./risky-programs.ts";
import type { Command } from "./shell/command.ts";
import type { RiskFound } from "./shell/effects.ts";

/**
 * Finds what deserves an approver's attention in the commands of a line, by their words. It is a reading aid: decisions do
 * not depend on it.
 */
export function risksOfCommands(commands: readonly Command[]): RiskFound[] {
  const downloaded = new Set<string>();
  return mergeRisks(
    commands.flatMap((command) => {
      const found = fragmentsOf(command, downloaded);
      for (const file of command.mentions.flatMap(downloadsTo)) downloaded.add(file);
      if (command.opaque !== undefined) return found;
      // A command that is understood is shown with the pipeline that feeds it.
      const parts = [command.pipeline?.text ?? command.text];
      return found.filter(({ parts }) => parts.length > 0).map(({ kind }) => ({ kind, parts }));
    }),
  );
}

/** The risks of a command with the fragments that cause them: the commands, files and variables that it names. */
function fragmentsOf(command: Command, downloaded: ReadonlySet<string>): RiskFound[] {
  const { mentions, uses, text, opaque } = command;
  const naming = (does: (words: readonly string[]) => boolean) => mentions.filter(does).map((words) => words.join(" "));
  const commands = naming(([, ...words]) => words.some(namesSecret));
  const files = uses.filter(({ path, as }) => as !== "look" && isSecretFile(path)).map(({ path }) => path);
  const variables = [...text.matchAll(secretVariable)].map(([variable]) => variable);
  // A file is shown with the command that names it.
  const alone = [...files, ...variables].filter((name) => !commands.some((words) => words.includes(name)));
  const runs = opaque === undefined ? [text] : naming(takesPartInDownload);
  return [
    ...mentions.flatMap((words) => commandRisks(words).map((kind) => ({ kind, parts: [words.join(" ")] }))),
    { kind: RiskKind.DOWNLOADED_CODE, parts: runsDownloads(command, downloaded) ? runs : [] },
    { kind: RiskKind.CREDENTIALS, parts: [...commands, ...alone] },
  ];
}

/** Finds the risks of an ask by its permission and patterns. */
export function risksOfAsk({
  permission,
  patterns,
  paths,
  deletes = [],
}: Pick<Ask, "permission" | "patterns" | "paths" | "deletes">): RiskFound[] {
  const secrets = patterns.filter((pattern, i) => isSecretFile(paths?.[i] ?? pattern));
  const found: RiskFound[] = [{ kind: RiskKind.DELETE, parts: deletes }];
  if (/^(read|edit)$/.test(permission)) found.push({ kind: RiskKind.CREDENTIALS, parts: secrets });
  if (permission === "external_directory") found.push({ kind: RiskKind.OUTSIDE, parts: patterns });
  if (/^web/.test(permission)) found.push({ kind: RiskKind.NETWORK, parts: patterns });
  return mergeRisks(found);
}

/** Merges risks by kind, the heaviest kind first; each part once, cut to what a line shows. */
export function mergeRisks(risks: readonly RiskFound[]): RiskFound[] {
  const byKind = Map.groupBy(risks, ({ kind }) => kind);
  return [...byKind]
    .map(([kind, alike]) => ({
      kind,
      parts: [...new Set(alike.flatMap(({ parts }) => parts).map(shorten))].slice(0, maxParts),
    }))
    .filter(({ parts }) => parts.length > 0)
    .toSorted((a, b) => a.kind - b.kind);
}

const maxParts = 5;
const maxPartLength = 200;

/** The displayed form of a part on one line; of a long one the beginning and the end, cut between words. */
function shorten(part: string): string {
  const text = visible(part.slice(0, 10 * maxPartLength).replaceAll(/\s+/g, " "));
  if ([...text].length <= maxPartLength) return text;
  const isCut = part.length > 10 * maxPartLength;
  const end = isCut ? visible(part.slice(-10 * maxPartLength).replaceAll(/\s+/g, " ")) : text;
  const first = [...text].slice(0, 130).join("");
  const last = [...end].slice(-60).join("");
  // A word that is longer than half of its share is cut all the same.
  return `${first.replace(/(?<=.{60}) \S*$/su, "")} … ${last.replace(/^\S* (?=.{20})/su, "")}`;
}

/** Checks if a word names a file with credentials. */
function namesSecret(word: string): boolean {
  return word.length < 4_096 && word.split(/[=:@]/).some(isSecretFile);
}

/** Checks by its name if a file holds credentials. */
function isSecretFile(path: string): boolean {
  return protectedFile("read", path) !== undefined || secretFiles.test(path);
}

const secretFiles =
  /(^|\/)(\.env(?!\.(example|sample|template|dist)$)(\.[\w.-]+)?|id_(rsa|dsa|ecdsa|ed25519)[\w-]*|[\w.-]+\.(pem|p12|pfx|keystore|jks)|\.npmrc|\.pypirc|\.vault-token|\.aws|\.kube|\.gnupg|\.ssh|\.config\/(gcloud|gh)(\/.*)?|\.azure(\/.*)?|\.cargo\/credentials(\.toml)?|\.docker\/config\.json|(etc\/)?(shadow|gshadow)|credentials(\.json)?|service-account[\w-]*\.json|secrets?\.(ya?ml|json|toml|env))$/i;

const secretVariable = /\$\{?\w*(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|PRIVATE_KEY|CREDENTIALS?)\w*\}?/gi;
