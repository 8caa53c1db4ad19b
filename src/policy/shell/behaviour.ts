import {
  type Below,
  commandsWithin,
  type Effects,
  type FileAccess,
  type NewEnd,
  noEffects,
  useBeside,
  usesIn,
} from "./effects.ts";
import { gitOptions, runGit, runsWithoutFiles } from "./git.ts";
import { belowDirectories, isTameAwk, isTameSed, runCompiler, runFind, runPackages, runTar } from "./grammars.ts";
import { interpret, interpreter } from "./interpreters.ts";
import type { SimpleCommand, Word } from "./line.ts";
import { dangersOf, each, type Operand, type Option, type OptionReader, optionReader } from "./options.ts";
import { changesShell, type Program, programs } from "./programs.ts";
import { isWrapper, wrap } from "./wrappers.ts";

/** Returns the effects of a command, as far as its program is known; for an unknown program the paths that its words may be. */
export function effectsOf({ words, input, piped }: SimpleCommand): Effects {
  const effects = noEffects();
  const name = programOf(words);
  const shell = interpreter(name);
  const run = special.get(name);
  const program = programs.get(name);
  if (isWrapper(name)) wrap(name, words, effects);
  else if (shell !== undefined) interpret(shell, words, input, effects);
  else if (run) run(words, effects);
  else if (program) runKnown(name, program, words, effects);
  else runUnknown(words, effects);
  if (changesShell.has(name)) addEvaluation(words, effects);
  const isKnown = shell !== undefined || run !== undefined || (program && program.operands !== "remote");
  if (!isKnown) addMentions(name, words, [input, piped], effects);
  addProgram(words[0], effects);
  for (const [at, { value }] of words.entries()) {
    if (
      /(^|[=:@,]|^-\w)\/(proc|dev|sys)(\/|$)/.test(value) &&
      !/(^|[=:@,])\/dev\/(null|stdin|stdout|stderr|zero)$/.test(value)
    ) {
      effects.dangers.push({ at, why: `${value} is of the kernel` });
    }
  }
  return effects;
}

/** Returns the name of a command's program, without its directory. */
export function programOf(words: readonly Word[]): string {
  const value = words[0]?.value ?? "";
  return value.slice(value.lastIndexOf("/") + 1);
}

/** Checks if a program may run a command that is among its own words, at an unknown position. */
export function mayRunItsWords(name: string): boolean {
  return isWrapper(name) || special.get(name) === runAnything || name === "ssh";
}

/** Describes a command that may give other paths a new meaning: it moves, links or unpacks them. Undefined for others. */
export function movesPaths(words: readonly Word[]): string | undefined {
  const name = programOf(words);
  const rest = words.slice(1).map(({ value }) => value);
  const copies =
    /^(cp|rsync|install)$/.test(name) &&
    rest.some((value) => /^(-\w*[aRrdPslD]|--(arc|rec|sym|link|no-d|lin))/.test(value));
  if (copies || movers.has(name)) return name;
  return name === "git" && !runsWithoutFiles(words) ? name : undefined;
}

const movers = new Set("ln mv tar bsdtar unzip 7z cpio link mount umount rename mmv patch fusermount".split(" "));

/** Adds the danger of shell commands that evaluate their words: subscripts, and options that take commands. */
function addEvaluation(words: readonly Word[], effects: Effects): void {
  for (const [at, { value }] of words.entries()) {
    if (at > 0 && /[[$`(]|^-/.test(value)) effects.dangers.push({ at, why: `bash may evaluate ${value}` });
  }
}

/** Adds the danger that a program runs a command that its words or its input spell. */
function addMentions(
  name: string,
  words: readonly Word[],
  heard: readonly (string | undefined)[],
  effects: Effects,
): void {
  const texts = [...words.slice(1).map(({ value }) => value), ...heard.filter((text) => text !== undefined)];
  const commands = [...new Set(texts.filter((text) => /[^\w./-]/.test(text)).flatMap(commandsWithin))];
  if (commands.length === 0) return;
  const why = `${name} may run a command that its words or its input spell, which a rule is about`;
  effects.dangers.push({ at: Number.POSITIVE_INFINITY, mayBegin: true, texts: commands, why });
}

type Run = (words: readonly Word[], effects: Effects) => void;

const special = new Map<string, Run>(
  Object.entries<Run>({
    ...each(
      "npx pnpx bunx uvx pipx eval trap split csplit ed emacs ex expect gdb nano nvim script su vi view vim",
      runAnything,
    ),
    ...each("cc clang clang++ g++ gcc", runCompiler),
    ...each("awk gawk mawk nawk", runAwk),
    ...each("sed gsed", runSed),
    ...each("docker podman", runDocker),
    ...each(". source", runScript),
    find: runFind,
    git: runGit,
    tar: runTar,
    dd: runDd,
    deno: runDeno,
    npm: (words, effects) => runPackages("npm", words, effects),
    pnpm: (words, effects) => runPackages("pnpm", words, effects),
    bun: (words, effects) => runPackages("bun", words, effects),
  }),
);

/** Treats a program outside the system's directories like a script. */
function addProgram(program: Word | undefined, effects: Effects): void {
  const value = program?.value ?? "";
  if (!value.includes("/") || /^\/(usr\/(local\/)?)?s?bin\/[^/]+$/.test(value)) return;
  effects.dangers.push({ at: 0, why: `${value} is a program outside the system's directories` });
  effects.scripts.push(value);
  effects.uses.push({ path: value, glob: false, as: "read" });
}

/** Checks if no option of a program does more than change what it prints. */
export function takesNoOptions(words: readonly Word[]): boolean {
  const program = programs.get(programOf(words));
  return program?.free === true && program.run === undefined;
}

/** Returns the index of the `--` behind which a program takes all words as operands; infinite if there is none, or none is known. */
export function endOfOptions(words: readonly Word[]): number {
  const name = programOf(words);
  const read = readers.get(name);
  if (read) return read(words, 1).end;
  if (!isWrapper(name) && !endsOptions.test(name)) return Number.POSITIVE_INFINITY;
  // Where the options of a program are not read here, `--` may be the value of an option before it.
  const at = words.findIndex((word, i) => word.value === "--" && !words[i - 1]?.value.startsWith("-"));
  return at === -1 ? Number.POSITIVE_INFINITY : at;
}

/** Returns the options of a command with their values, if those of its program are known. */
export function optionsOf(words: readonly Word[]): readonly Option[] | undefined {
  const name = programOf(words);
  return name === "git" ? gitOptions(words) : readers.get(name)?.(words, 1).options;
}

/** Programs with separate readers that take `--` as the end of their options. */
const endsOptions = /^(git|tar|g?sed|[gmn]?awk)$/;

const readers = new Map<string, OptionReader>([...programs].map(([name, program]) => [name, optionReader(program)]));

function runKnown(name: string, program: Program, words: readonly Word[], effects: Effects): void {
  const { options, operands } = readers.get(name)?.(words, 1) ?? { options: [], operands: [] };
  const counted = program.free ? options.filter(({ means }) => means !== undefined) : options;
  effects.dangers.push(...dangersOf(name, counted));
  const below = belowDirectories(program.walks, options);
  for (const option of counted) if (!isTarget(option)) addOption(option, effects, below);
  addOperands(name, program, words, options, operands, effects);
}

function addOption({ name, means, value, at }: Option, effects: Effects, below?: Below): void {
  if (/^(-w|--write-out)$/.test(name) && /^@|output/.test(value?.value ?? ""))
    effects.dangers.push({ at, why: `${name} reads or writes a file` });
  if (!value || value.value === "-" || means === "text") return;
  if (/^[|!]/.test(value.value)) effects.dangers.push({ at, why: `${name} may run ${value.value}` });
  if (means === "read" && /[{}[\]]/.test(value.value) && /^(-T|--upload-file)$/.test(name))
    effects.dangers.push({ at, why: `${value.value} stands for several files` });
  if (means === "data") {
    const file = /^(?:[^@<]*=|[^=]*=)?[@<](.+)/.exec(value.value)?.[1] ?? /^[^=@]+@(.+)/.exec(value.value)?.[1];
    // A form names several files, quoted or behind spaces, and after a semicolon their types and files of headers.
    const parts = (file ?? value.value).split(/[,;]/);
    const files = parts.flatMap((part, i) => {
      const [, isNamed, name = ""] = /^(\s*headers=[@<])?(.*)$/s.exec(part) ?? [];
      return file !== undefined || (i > 0 && isNamed) ? name.trim().replace(/^"|"$/g, "") : [];
    });
    for (const one of new Set(file === undefined ? files : [file, ...files])) {
      if (one !== "-" && one !== "") effects.uses.push(...usesIn({ ...value, value: one }, "read"));
    }
    return;
  }
  const as = means === "look" || means === "read" || means === "write" ? means : "may";
  effects.uses.push(...usesIn(value, as, as === "read" ? below : undefined));
}

function addOperands(
  name: string,
  program: Program,
  words: readonly Word[],
  options: readonly Option[],
  operands: readonly Operand[],
  effects: Effects,
): void {
  const below = belowDirectories(program.walks, options);
  const use = (list: readonly Operand[], as: FileAccess) => {
    for (const { word, at } of list) {
      if (word.value !== "-") effects.uses.push(...usesIn(word, as, below));
      if (name === "strings" && word.value.startsWith("@"))
        effects.dangers.push({ at, why: `${word.value} is a file with more words` });
    }
  };
  const [first] = operands;
  if (first && program.runs?.split(" ").includes(first.word.value)) {
    const why = `${name} ${first.word.value} may run any program`;
    effects.dangers.push({ at: first.at, why, isNamed: true });
  }
  const hasOption = (names: string) => options.some(({ name }) => names.split(" ").includes(name));
  switch (program.operands) {
    case "text":
      // `echo /etc/*` lists a directory, although echo reads no files.
      use(
        operands.filter(({ word }) => word.glob),
        "look",
      );
      break;
    case "pattern": {
      const files = hasOption(program.pattern ?? "") ? operands : operands.slice(1);
      use(files.length === 0 && below && program.walks?.here ? [here] : files, "read");
      if (name === "jq" && operands.some(({ word }) => /\b(import|include)\b/.test(word.value)))
        effects.dangers.push({ at: 1, why: "the program may read other files" });
      break;
    }
    case "rewrite": {
      use(operands, "read");
      use(operands, "change");
      const suffix = suffixesIn(options).at(-1) ?? program.suffix ?? "";
      const ends: NewEnd[] = [{ add: suffix }, { remove: suffix }, { remove: ".*" }];
      for (const { word } of operands) effects.uses.push(...ends.map((end) => useBeside(word, "change", end)));
      break;
    }
    case "mode":
      use(hasOption("--reference") ? operands : operands.slice(1), "change");
      break;
    case "filter":
      use(operands.slice(0, 1), "read");
      use(operands.slice(1), "write");
      break;
    case "archive":
      use(operands.slice(0, 1), "write");
      use(operands.slice(1), "read");
      break;
    case "targets":
      for (const { word, at } of operands) {
        if (word.value.includes("=") && !isSwitch.test(word.value))
          effects.dangers.push({ at, why: `${word.value} changes what is run` });
      }
      break;
    case "copy":
    case "move":
      addCopy(name, program, options, operands, below, effects);
      break;
    case "remote":
      break;
    case "address":
      addAddresses(name, options, operands, effects);
      break;
    default:
      use(operands, program.operands);
      if (program.operands === "may")
        addBeginnings(
          words,
          operands.map(({ at }) => at),
          effects,
        );
  }
}

const here: Operand = { word: { value: ".", glob: false, status: false }, at: 0 };

/** `V=1`: a number cannot be a program. */
const isSwitch = /^(?!MAKE|SHELL)[A-Z_]+=\d+$/;

/** `-t DIR` of cp and similar programs: the destination of the copies. */
function isTarget({ name, means }: Option): boolean {
  return means === "write" && /^(-t|--target.*)$/.test(name);
}

/** Returns the values of the option that names a suffix: that of backups, or of compressed files. */
function suffixesIn(options: readonly Option[]): string[] {
  return options.flatMap(({ name, value }) => (/^(-S|--suffix)$/.test(name) && value ? [value.value] : []));
}

function addCopy(
  name: string,
  program: Program,
  options: readonly Option[],
  operands: readonly Operand[],
  below: Below | undefined,
  effects: Effects,
): void {
  const directory = options.find(isTarget);
  const isAlone = directory === undefined && operands.length === 1;
  const sources = (directory || isAlone ? operands : operands.slice(0, -1)).map(({ word }) => word);
  const target = directory?.value ?? (isAlone ? here.word : operands.at(-1)?.word);
  for (const word of sources) effects.uses.push(...usesIn(word, "read", below));
  if (program.operands === "move") for (const word of sources) effects.uses.push(...usesIn(word, "change", below));
  const isFile = options.some(({ name }) => name === "-T" || name === "--no-target-directory");
  const withoutHost = (path: string) => (/^(scp|rsync)$/.test(name) ? path.replace(/^[^/]*:/, "") : path);
  const names = isFile ? undefined : sources.map(({ value }) => nameOf(withoutHost(value)));
  if (!target || withoutHost(target.value) !== target.value) return;
  const trees = sources.map(({ value }) => ({
    from: value,
    to: isFile || (program.contents && value.endsWith("/")) ? "" : nameOf(value),
  }));
  effects.uses.push({
    path: target.value,
    glob: target.glob,
    as: "write",
    ...(names && { names }),
    ...(below && { trees }),
  });
  for (const suffix of suffixesIn(options)) {
    const backups = names?.map((name) => name + suffix);
    effects.uses.push(useBeside(target, "write", { add: suffix }));
    if (backups) effects.uses.push({ path: target.value, glob: target.glob, as: "write", names: backups });
  }
  if (below && sources.some(({ glob }) => glob)) {
    effects.dangers.push({ at: operands[0]?.at ?? 0, why: "it copies directories that match a pattern" });
  }
}

function nameOf(path: string): string {
  const name = path.replace(/\/+$/, "").replace(/^.*\//, "");
  return name === "." || name === ".." ? "" : name;
}

function addAddresses(name: string, options: readonly Option[], operands: readonly Operand[], effects: Effects): void {
  for (const [i, { word, at }] of operands.entries()) {
    const { value } = word;
    effects.uses.push(...usesIn(word, "may").filter(({ path }) => /^file:/i.test(value) || path.startsWith("/")));
    if (i > 0) effects.dangers.push({ at, why: `${value} is a second address` });
    if (/[{}[\]]/.test(value)) effects.dangers.push({ at, why: `${value} stands for several addresses` });
    const scheme = /^([a-z][a-z0-9+.-]*):\/\//i.exec(value)?.[1]?.toLowerCase();
    if (scheme !== undefined && !/^https?$/.test(scheme))
      effects.dangers.push({ at, why: `${scheme} is no web address` });
  }
  const keeps = options.some(
    ({ name, means }) => name === "--spider" || (means === "write" && /^(-O|--output-d)/.test(name)),
  );
  if (name !== "wget" || keeps) return;
  for (const { word } of operands) {
    const file = /^(?:[a-z]+:\/\/)?[^/?#]*\/(?:[^?#]*\/)?([^/?#]+)/i.exec(word.value)?.[1] ?? "index.html";
    const path = file.replace(/(?:%[0-9a-f]{2})+/gi, (bytes) =>
      Buffer.from(bytes.replaceAll("%", ""), "hex").toString(),
    );
    effects.uses.push({ path, glob: false, as: "write" });
  }
}

const sedReader = optionReader({
  flag: "-n --quiet --silent -E -r --regexp-extended -s --separate -u --unbuffered -z --null-data --posix --debug --sandbox --help --version",
  maybe: "-i --in-place",
  text: "-e --expression -l --line-length",
  run: "-f --file --follow-symlinks",
});

function runSed(words: readonly Word[], effects: Effects): void {
  const { options, operands } = sedReader(words, 1);
  effects.dangers.push(...dangersOf("sed", options));
  for (const option of options) addOption({ ...option, ...(option.means === "maybe" && { means: "text" }) }, effects);
  const given = options.filter(({ name }) => name === "-e" || /^--e/.test(name));
  const scripts = given.length > 0 ? given : operands.slice(0, 1);
  for (const script of scripts) {
    const text = ("word" in script ? script.word : script.value)?.value ?? "";
    if (!isTameSed(text))
      effects.dangers.push({ at: script.at, why: "the script may run programs or touch other files" });
  }
  const inPlace = options.find(({ means }) => means === "maybe");
  if (/[/*]/.test(inPlace?.value?.value ?? ""))
    effects.dangers.push({ at: inPlace?.at ?? 0, why: "the copies are written elsewhere" });
  for (const { word } of given.length > 0 ? operands : operands.slice(1)) {
    effects.uses.push(...usesIn(word, "read"), ...(inPlace ? usesIn(word, "write") : []));
    if (inPlace?.value) effects.uses.push(useBeside(word, "write", { add: inPlace.value.value }));
  }
}

const awkReader = optionReader({
  text: "-F -v --field-separator --assign",
  flag: "--posix -P --re-interval --csv -k",
  run: "-f -i -l -E -e --file --include --load --exec --source -o -p -d -D",
});

function runAwk(words: readonly Word[], effects: Effects): void {
  const { options, operands } = awkReader(words, 1, true);
  effects.dangers.push(...dangersOf("awk", options));
  for (const option of options) addOption(option, effects);
  const [program, ...files] = operands;
  if (program && !isTameAwk(program.word.value)) {
    effects.dangers.push({ at: program.at, why: "the program may run others or touch other files" });
  }
  for (const { word } of files) effects.uses.push(...usesIn(word, "read"));
}

function runDd(words: readonly Word[], effects: Effects): void {
  for (const [at, word] of words.entries()) {
    const [, name, path] = /^(if|of)=(.*)$/.exec(word.value) ?? [];
    if (
      at > 0 &&
      path === undefined &&
      !/^((bs|count|skip|seek|status|conv|ibs|obs|cbs|iflag|oflag)=|--(help|version)$)/.test(word.value)
    )
      effects.dangers.push({ at, why: `dd ${word.value} is not known to be harmless` });
    if (path !== undefined) effects.uses.push({ path, glob: word.glob, as: name === "of" ? "write" : "read" });
  }
}

const dockerShows = new Set(
  "ps images logs inspect version info stats top port diff history search events help --version --help".split(" "),
);

const denoWorks = new Set("check doc fmt info lint task test types help --help --version".split(" "));

function runDeno(words: readonly Word[], effects: Effects): void {
  const command = words[1];
  if (command && !denoWorks.has(command.value)) {
    effects.dangers.push({ at: 1, why: `deno ${command.value} is not known to be harmless` });
  }
  for (const word of words.slice(2)) effects.uses.push(...usesIn(word, "may"));
}

function runDocker(words: readonly Word[], effects: Effects): void {
  const command = words[1];
  if (command && !dockerShows.has(command.value)) {
    const why = `${programOf(words)} ${command.value} is not known to be harmless`;
    effects.dangers.push({ at: 1, why, ...(/^(?!exec$)\w/.test(command.value) && { isNamed: true }) });
  }
  for (const word of words.slice(2)) effects.uses.push(...usesIn(word, "may"));
}

/** Adds the danger that a program of which little is known runs the words from one of these places on. */
function addBeginnings(words: readonly Word[], places: readonly number[], effects: Effects): void {
  const name = programOf(words);
  const starts = places.filter((at) => /^[\w./]/.test(words[at]?.value ?? ""));
  for (const at of starts.slice(0, maxBegun))
    effects.dangers.push({ at, mayBegin: true, why: `${name} may run ${words[at]?.value}, which a rule is about` });
  const at = Number.POSITIVE_INFINITY;
  const texts = starts.slice(maxBegun, maxBegunTexts).map((at) => beginningAt(words, at));
  if (texts.length > 0)
    effects.dangers.push({
      at,
      mayBegin: true,
      texts,
      why: `${name} may run words behind others, which a rule is about`,
    });
  if (starts.length > maxBegunTexts)
    effects.dangers.push({ at, why: `${name} may run words behind ${maxBegunTexts} others` });
}

function beginningAt(words: readonly Word[], at: number): string {
  const [program = "", ...rest] = words.slice(at, at + maxBegunLength).map(({ value }) => value);
  return [program.slice(program.lastIndexOf("/") + 1), ...rest].join(" ").slice(0, maxBegunLength);
}

/** Words of a command that are judged as beginnings with all that follows, and those of which the first characters are. */
const maxBegun = 32;
const maxBegunTexts = 256;
const maxBegunLength = 1_024;

/** Adds the danger of a program whose words say little about what it will do. */
function runAnything(words: readonly Word[], effects: Effects): void {
  effects.dangers.push({ at: words.length > 1 ? 1 : 0, why: `${programOf(words)} runs anything` });
  for (const word of words.slice(1)) effects.uses.push(...usesIn(word, "may"));
}

function runScript(words: readonly Word[], effects: Effects): void {
  runAnything(words, effects);
  const script = words[1];
  if (script) effects.scripts.push(script.value);
}

function runUnknown(words: readonly Word[], effects: Effects): void {
  addBeginnings(words, [...words.keys()].slice(1), effects);
  for (const word of words.slice(1)) {
    const { value } = word;
    const attached = /^-[^-=](.*[/~].*|\.\.)$/.exec(value)?.[1];
    if (!value.startsWith("-")) effects.uses.push(...usesIn(word, "may"));
    else if (value.includes("="))
      effects.uses.push(...usesIn({ ...word, value: value.slice(value.indexOf("=") + 1) }, "may"));
    else if (attached !== undefined) effects.uses.push(...usesIn({ ...word, value: attached }, "may"));
  }
}
