import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type Ask, outsideSandbox } from "../core/ask.ts";
import { jsonLeaves } from "../core/json.ts";
import { secretForms, visible, visibleLine } from "../core/visible.ts";
import type { ExpandedAsk } from "./model.ts";
import { protectedFile } from "./protected-files.ts";
import {
  commandRisks,
  deletesByCode,
  downloadsTo,
  isTextProgram,
  programName,
  runsDownloads,
  takesPartInDownload,
} from "./risky-programs.ts";
import {
  type Command,
  isSimpleLine,
  type LineReading,
  type Readings,
  readCommands,
  unreadLine,
} from "./shell/command.ts";
import type { RiskFound } from "./shell/effects.ts";
import { interpreter } from "./shell/interpreters.ts";

/**
 * Finds what deserves an approver's attention in the commands of a line, by their words. Conditions of rules may use it, but a kind
 * that is missing proves nothing. With `registries` the sandbox contains them: what it makes harmless is left out, and installs by
 * name from these hosts are PACKAGES instead of DOWNLOADED_CODE.
 */
export function risksOfCommands(commands: readonly Command[], registries?: readonly string[]): RiskFound[] {
  const downloaded = new Set<string>();
  const installs = registries && registries.length > 0 ? installsOf(commands, registries) : new Set();
  const isElsewhere = commands.some(({ text }) => namesElsewhere.test(text));
  return mergeRisks(
    commands.flatMap((command) => {
      // What it fetches in the network of its session is no download.
      const mentions = command.mentions.filter((words) => !registries || !isOwnFetch(words));
      const found = fragmentsOf({ ...command, mentions }, downloaded, (kind, words) => {
        if (registries && isHeld(kind, words, isElsewhere)) return undefined;
        return kind === RiskKind.DOWNLOADED_CODE && installs.has(words) ? RiskKind.PACKAGES : kind;
      });
      for (const file of command.mentions.flatMap(downloadsTo)) downloaded.add(file);
      if (command.opaque !== undefined) return found;
      // A command that is understood is shown with the pipeline that feeds it.
      const parts = [command.pipeline?.text ?? command.text];
      return found.filter(({ parts }) => parts.length > 0).map(({ kind }) => ({ kind, parts }));
    }),
  );
}

/** Finds the commands that install by name, as their words, unless the line itself writes the names or runs what they bring. */
function installsOf(commands: readonly Command[], registries: readonly string[]): Set<readonly string[]> {
  const writesNames = commands.some(({ uses }) => uses.some(({ path, as }) => as === "write" && isManifest(path)));
  const found = commands.flatMap((command, place) => {
    // What is not understood may run in any order.
    const others = command.opaque === undefined ? commands.slice(place) : commands;
    const all = others
      .flatMap(({ mentions }) => mentions)
      .filter(([program = ""]) => !isTextProgram(programName(program)));
    return command.mentions.filter((words) => {
      const names = installedNames(words, registries);
      const later = all.filter((other) => !isWrapped(words, other) && installedNames(other, registries) === undefined);
      const isUsed = (name: string) => later.some((other) => other.some((word) => namesWord(word, name)));
      return names !== undefined && !names.some(isUsed) && !(writesNames && names.length === 0);
    });
  });
  return new Set(found);
}

/** Checks if a command is the end of another one, such as `timeout 60 COMMAND`. */
const isWrapped = (words: readonly string[], by: readonly string[]) =>
  words.every((word, i) => by[by.length - words.length + i] === word);

/**
 * Checks if the sandbox leaves a risk without effect: what a command sends to a server beside it, what needs the socket of a daemon, and
 * packages of the system, whose directories are read-only, unless the line names another daemon or other directories.
 */
function isHeld(kind: RiskKind, words: readonly string[], isElsewhere: boolean): boolean {
  const [program = "", ...rest] = words;
  if (kind === RiskKind.PUBLISH) return isOwnFetch(words);
  if (kind !== RiskKind.DOWNLOADED_CODE || isElsewhere) return false;
  const name = programName(program);
  // Other options run commands, or install elsewhere, and a file is no package of the system.
  if (systemPackages.test(name)) return rest.every((word) => systemOption.test(word) || systemPackage.test(word));
  return name === "docker" && /^(buildx )?build\b|^compose (up|build|pull)\b/.test(rest.join(" "));
}

/** Words by which docker reaches a daemon over the network, and a package manager installs elsewhere. */
const namesElsewhere =
  /\b(DOCKER_(HOST|CONTEXT|CONFIG)|BUILDX_\w+|BUILDKIT_HOST|(APT|DNF|YUM|RPM|ZYPP|PACMAN|APK)_?CONF\w*)\b|\b(context|buildx) (create|use|import|update)\b|\btcp:\/\//;

const systemPackages = /^(apt|apt-get|dnf|yum|apk|pacman|zypper)$/;
const systemOption =
  /^(-[yqSu]+|--(yes|assume-?yes|quiet|no-install-recommends|no-cache|update|noconfirm|needed|non-interactive|fix-missing))$/;
const systemPackage = /^(?!(download|source|changelog)$|\S*\.(deb|rpm|apk|zst|xz)$)[a-z0-9][\w.+-]*([=:][\w.+:~-]+)?$/i;

/** Checks if a command reaches only the network of its session. What it does not know, such as a redirect or a proxy, may lead out. */
function isOwnFetch([program = "", ...rest]: readonly string[]): boolean {
  const name = programName(program);
  const words = rest.map((word) => word.replaceAll(/^['"]|['"]$/g, ""));
  if (/^(https?|xh)$/.test(name)) {
    const [first = "", second = ""] = words.filter((word) => !plainHttpOption.test(word));
    return (
      isOwnAddress(/^[A-Z]+$/.test(first) ? second : first) && !words.some((word) => otherOption(word, plainHttpOption))
    );
  }
  if (name !== "curl") return false;
  const operands: string[] = [];
  for (let at = 0; at < words.length; at += 1) {
    const word = words[at] ?? "";
    if (curlValue.test(word)) at += 1;
    else if (!word.startsWith("-")) operands.push(word);
    else if (word !== "--url" && !curlOption.test(word)) return false;
  }
  return operands.length > 0 && operands.every(isOwnAddress);
}

const otherOption = (word: string, known: RegExp) => word.startsWith("-") && !known.test(word);
const isOwnAddress = (word: string) =>
  /^(https?:\/\/)?(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?([/?#]|$)/i.test(word) || /^:\d{1,5}(\/|$)/.test(word);
const plainHttpOption = /^(-[jfbhv]+|--(json|form|body|headers|verbose|ignore-stdin|check-status|timeout=\S+))$/;
/** Options of curl after which a value follows. */
const curlValue =
  /^(-[sSfikgvNIjG#]*[XdHTFowmuAbce]|--(request|header|data(-\w+)?|json|form(-string)?|upload-file|output|write-out|max-time|connect-timeout|retry(-delay|-max-time)?|user|user-agent|cookie|cookie-jar|referer))$/;
/** Options of curl without one, or with one in the same word. */
const curlOption =
  /^(-[sSfikgvNIjGO#]*([XdHTFowmuAbce].+)?|--(silent|show-error|fail|fail-with-body|include|insecure|head|verbose|compressed|no-progress-meter|no-buffer|get|globoff|remote-name|http1\.1|http2|retry-connrefused|retry-all-errors))$/s;

/** Checks if a text contains a name as a whole word, also as a module is spelled in code. */
function namesWord(text: string, name: string): boolean {
  const [, ...parts] = /^@?(?:[\w.-]+\/)*([\w.-]+)$/.exec(name) ?? [];
  const [last = name] = parts;
  return [name, last, last.replaceAll("-", "_")].some((one) => {
    const at = text.indexOf(one);
    return at !== -1 && !/[\w-]/.test(text[at - 1] ?? "") && !/[\w-]/.test(text[at + one.length] ?? "");
  });
}

/** A redirect without a command, or with one that prints nothing, empties its file. */
const emptying =
  /(^|&&|\|\||;|\bdo|\bthen|-c ['"])\s*(?:(?::|true|cat \/dev\/null)\s*)?>(?![>&(=])\s*(?!\/dev\/null)[\w./~$"']/;

/** Returns the code that a command passes to an interpreter by its input. */
function fedCode({ mentions, pipeline, text }: Command): string {
  const isFed = ([program = "", ...rest]: readonly string[]) =>
    interpreter(programName(program)) !== undefined && rest.every((word) => word.startsWith("-"));
  return mentions.some(isFed) ? (pipeline?.text ?? text) : "";
}

/** The risks of a command with the fragments that cause them: the commands, files and variables that it names. */
function fragmentsOf(
  command: Command,
  downloaded: ReadonlySet<string>,
  kindOf: (kind: RiskKind, words: readonly string[]) => RiskKind | undefined,
): RiskFound[] {
  const { mentions, uses, text, opaque } = command;
  const naming = (does: (words: readonly string[]) => boolean) => mentions.filter(does).map((words) => words.join(" "));
  const commands = naming(([, ...words]) => words.some(namesSecret));
  const files = uses.filter(({ path, as }) => as !== "look" && isSecretFile(path)).map(({ path }) => path);
  const variables = [...text.matchAll(secretVariable)].map(([variable]) => variable);
  // A file is shown with the command that names it.
  const alone = [...files, ...variables].filter((name) => !commands.some((words) => words.includes(name)));
  const runs = opaque === undefined ? [text] : naming(takesPartInDownload);
  return [
    ...mentions.flatMap((words) =>
      commandRisks(words).flatMap((found) => {
        const kind = kindOf(found, words);
        return kind === undefined ? [] : { kind, parts: [words.join(" ")] };
      }),
    ),
    { kind: RiskKind.DELETE, parts: deletesByCode(fedCode(command)) || emptying.test(text) ? [text] : [] },
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
  alwaysAsk,
}: Pick<Ask, "permission" | "patterns" | "paths" | "deletes" | "alwaysAsk">): RiskFound[] {
  const secrets = patterns.filter((pattern, i) => isSecretFile(paths?.[i] ?? pattern));
  const found: RiskFound[] = [{ kind: RiskKind.DELETE, parts: deletes }];
  if (/^(read|edit)$/.test(permission)) found.push({ kind: RiskKind.CREDENTIALS, parts: secrets });
  if (permission === "external_directory") found.push({ kind: RiskKind.OUTSIDE, parts: patterns });
  if (alwaysAsk === outsideSandbox)
    found.push({ kind: RiskKind.OUTSIDE, parts: patterns.map((pattern) => `${pattern} ${alwaysAsk}`) });
  if (/^web/.test(permission)) found.push({ kind: RiskKind.NETWORK, parts: patterns });
  return mergeRisks(found);
}

/** Permissions whose asks name all that their input is about, so that its texts are content. */
const namesAll = /^(bash|read|edit|list|glob|grep|lsp|external_directory|webfetch|doom_loop|question)$/;
/** Characters of an input that are searched for risks. */
const maxTextLength = 65_536;

/**
 * Finds the secrets, files with credentials and addresses in the texts of an input of which nothing else is known, such as the prompt
 * of a subagent. Each part begins with the path of its text: `prompt: https://example.com`.
 */
export function risksOfTexts({
  permission,
  call: { input = {} } = {},
}: Pick<ExpandedAsk, "permission" | "call">): RiskFound[] {
  if (namesAll.test(permission)) return [];
  let left = maxTextLength;
  return jsonLeaves(input).flatMap(({ path, text }) => {
    const searched = text.slice(0, Math.max(0, left));
    left -= text.length;
    const words = searched.split(/[\s"'`()<>,;|&]+/).map((word) => word.replace(/(?<![.:!?])[.:!?]+$/, ""));
    const secrets = [...searched.matchAll(secretForms)].map(([secret]) => secret);
    const named = (parts: readonly string[]) => parts.map((part) => `${visibleLine(path.slice(1))}: ${part}`);
    const files = words.filter((word) => /[./]/.test(word) && namesSecret(word));
    return [
      { kind: RiskKind.CREDENTIALS, parts: named([...secrets, ...files]) },
      { kind: RiskKind.NETWORK, parts: named(words.filter((word) => /^[a-z][a-z0-9+.-]*:\/\/./i.test(word))) },
    ];
  });
}

/** Finds the risks of an ask that approvers are shown, the heaviest kind first. */
export function risksShown(ask: ExpandedAsk): RiskFound[] {
  return mergeRisks([...(ask.risks ?? []), ...risksOfAsk(ask), ...risksOfTexts(ask)]);
}

/** Checks if texts of an ask, or of the code that it runs, are too long to be searched for risks, so that it may have any. */
export function hasUnsearched({ permission, call: { input = {} } = {}, hasUnreadCode }: ExpandedAsk): boolean {
  const isLong = () => jsonLeaves(input).reduce((length, { text }) => length + text.length, 0) > maxTextLength;
  return hasUnreadCode === true || (!namesAll.test(permission) && isLong());
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

/** The words by which a program installs packages by name, or those that a file of the workspace names. */
const installers: Readonly<Record<string, RegExp>> = {
  pip: /^(install|download|wheel)$/,
  npm: /^(install|i|add|ci|clean-install|update|up)$/,
  pnpm: /^(install|i|add|update|up)$/,
  yarn: /^(install|add|upgrade|up|--\S+)$/,
  bun: /^(install|i|add|update)$/,
  cargo: /^(add|install|update)$/,
  gem: /^(install|update)$/,
  bundle: /^(install|update|add)$/,
  composer: /^(install|update|require)$/,
  poetry: /^(add|install|update)$/,
  pdm: /^(add|install|update|sync)$/,
  rye: /^(add|sync)$/,
  pipenv: /^(install|update|sync)$/,
  uv: /^(add|sync)$/,
  go: /^(get|install)$/,
  conda: /^(create|install|update)$/,
  mamba: /^(create|install|update)$/,
  pipx: /^install$/,
};

/** Options that name another place than the registries, or a file that is no list of names. */
const otherPlace = /^(-e|--editable|--git|--path|--find-links|--prefix-url|--repository-url|--trusted-host)(=|$)/;
const plainName = /^@?[\w.-]+(\/[\w.-]+)*(\[[\w,.-]*\])?([=<>~!^@][^:/\s]*)*$/;

/**
 * Returns the names that a command installs from these registries; undefined unless that is all it does. An address that it names has to
 * be of one of them.
 */
function installedNames(words: readonly string[], registries: readonly string[]): string[] | undefined {
  const [program = "", first = "", ...others] = withoutPython(words);
  const name = programName(program);
  const isUv = name === "uv" && /^(pip|tool)$/.test(first) && others[0] === "install";
  const operands = isUv ? others.slice(1) : others;
  if (!isUv && !installers[name]?.test(first) && !(name === "yarn" && words.length === 1)) return undefined;
  const names: string[] = [];
  for (const [i, word] of operands.entries()) {
    if (otherPlace.test(word)) return undefined;
    const host = /^(?:--?[\w-]+=)?[a-z+]+:\/\/([^/:?#]+)/i.exec(word)?.[1];
    if (word.includes("://")) {
      if (host === undefined || /\bgit\b|@/.test(word) || !registries.includes(host.toLowerCase())) return undefined;
    } else if (!word.startsWith("-") && !valueOptions.test(operands[i - 1] ?? "")) {
      const isScoped = word.startsWith("@") || name === "go";
      if (/^[./~]/.test(word) || !plainName.test(word) || (!isScoped && word.includes("/"))) return undefined;
      names.push(word.replace(/(?<=.)[[=<>~!^@].*$/, ""));
    }
  }
  return names;
}

/** Options whose next word is no package. */
const valueOptions =
  /^(-r|--requirement|-c|--constraint|--timeout|--retries|-t|--target|--root|--python|-n|--name|--version|--features|-F|-w|--workspace|--prefix|--index-url|-i|--extra-index-url|--registry|-j|--jobs|--group|--channel|--cache-dir|--python-version|--platform)$/;

/** `python -m pip` is pip. */
function withoutPython(words: readonly string[]): readonly string[] {
  const [program = "", module, name] = words;
  return programName(program) === "python" && module === "-m" && name === "pip" ? words.slice(2) : words;
}

/** Files in which the packages of a workspace are named. */
const isManifest = (path: string) =>
  /(^|\/)(package(-lock)?\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|yarn\.lock|requirements[\w.-]*\.txt|pyproject\.toml|setup\.(py|cfg)|Pipfile(\.lock)?|poetry\.lock|uv\.lock|Cargo\.(toml|lock)|go\.(mod|sum)|Gemfile(\.lock)?|composer\.(json|lock)|environment\.ya?ml)$/.test(
    path,
  );

const maxReadingLength = 1_048_576;

/** Reads a line, and its longer commands by themselves. */
export function readWholeLine(line: string): Readings {
  const commands = readCommands(line);
  const longer = commands.map(({ text }) => text).filter((text) => text !== line && !isSimpleLine(text));
  const readings = new Map<string, LineReading>([[line, { commands, risks: risksOfCommands(commands) }]]);
  for (const text of longer) readings.set(text, readings.get(text) ?? { commands: readCommands(text) });
  const isLarge = JSON.stringify([...readings]).length > maxReadingLength;
  return isLarge ? unreadLine(line, "it names too many commands") : readings;
}
