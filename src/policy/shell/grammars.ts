import { type Below, type Effects, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";
import { dangersOf, type Option, optionReader } from "./options.ts";
import type { Walks } from "./programs.ts";

/** Returns what a program reads below the directories it is given; undefined if it does not walk them. */
export function belowDirectories(walks: Walks | undefined, options: readonly Option[]): Below | undefined {
  const used = (names = "") => options.filter(({ name }) => names.split(" ").includes(name));
  if (!walks || (walks.with !== undefined && used(walks.with).length === 0)) return undefined;
  const values = (names = "") => used(names).flatMap(({ value }) => value?.value ?? []);
  const only = used(walks.except).length > 0 ? [] : values(walks.onlyOf);
  return {
    hidden: walks.hiddenWith === undefined || used(walks.hiddenWith).length > 0,
    links: walks.links === true || used(walks.linksWith).length > 0,
    ...(only.length > 0 && { only }),
    except: values(walks.notInto).filter((name) => !/[*?[\\]/.test(name)),
  };
}

const tests = new Set(
  "-print -print0 -ls -prune -depth -d -empty -executable -readable -writable -follow -mount -xdev -not -a -and -o -or -true -false -quit -nouser -nogroup -daystart -noleaf -warn -nowarn -help --help -version --version -H -L -P -O0 -O1 -O2 -O3".split(
    " ",
  ),
);
const valued = new Set(
  "-name -iname -path -ipath -wholename -iwholename -lname -ilname -regex -iregex -regextype -type -xtype -maxdepth -mindepth -size -mtime -mmin -atime -amin -ctime -cmin -perm -user -group -uid -gid -links -inum -printf -fstype -used".split(
    " ",
  ),
);
const comparing = /^-(newer([aBcm][aBcmt])?|anewer|cnewer|samefile)$/;
const running = new Set(["-exec", "-execdir", "-ok", "-okdir"]);

/** Adds the effects of a find expression: tests are harmless; actions that run, remove or write are not. */
export function runFind(words: readonly Word[], effects: Effects): void {
  addRead(words, effects);
  for (let at = 1; at < words.length; at++) {
    const word = words[at];
    if (!word) return;
    const { value } = word;
    if (tests.has(value) || value === "(" || value === ")" || value === "!" || value === ",") continue;
    if (valued.has(value)) {
      at += 1;
    } else if (comparing.test(value)) {
      at += 1;
      const compared = words[at];
      if (compared) effects.uses.push(...usesIn(compared, "look"));
    } else if (running.has(value)) {
      const end = words.findIndex(({ value }, i) => i > at && (value === ";" || value === "+"));
      const program = words.slice(at + 1, end === -1 ? undefined : end);
      effects.dangers.push({ at, why: `${value} runs a program on what is found` });
      if (program.length > 0) effects.inner.push({ words: program, at: at + 1 });
      at += program.length + 1;
    } else if (value.startsWith("-")) {
      effects.dangers.push({ at, why: `${value} is not known to be harmless` });
    } else {
      effects.uses.push(...usesIn(word, "look"));
    }
  }
}

/** Adds the files that an action may read: everything below the start directories. */
function addRead(words: readonly Word[], effects: Effects): void {
  const first = words.findIndex(({ value }) => running.has(value));
  if (first === -1) return;
  const before = words.slice(1, first);
  const end = before.findIndex(({ value }) => /^[-(!,]/.test(value) && !/^-[HLP]$/.test(value));
  const starts = before.slice(0, end === -1 ? undefined : end).filter(({ value }) => !value.startsWith("-"));
  const isPlain = !words.some(({ value }) => /^(-o|-or|-not|!|,|\()$/.test(value));
  const only = before.flatMap(({ value }, i) => (/^-i?name$/.test(value) ? (before[i + 1]?.value ?? []) : []));
  const below = {
    hidden: true,
    links: words.some(({ value }) => value === "-L" || value === "-follow"),
    ...(isPlain && only.length > 0 && { only }),
  };
  for (const word of starts.length > 0 ? starts : [here]) effects.uses.push(...usesIn(word, "read", below));
}

const here: Word = { value: ".", glob: false, status: false };

const compilerFlags = new Set(
  "-c -S -E -v -w -g -s -pg -static -shared -pthread -pie -no-pie -pedantic -pedantic-errors -ansi -pipe -rdynamic -nostdlib -nostdinc -nostartfiles -ffreestanding -fPIC -fpic -fPIE -fpie -fno-exceptions -fno-rtti -fno-common -fno-builtin -fno-inline -fno-strict-aliasing -fomit-frame-pointer -fno-omit-frame-pointer -fstack-protector -fstack-protector-strong -fstack-protector-all -fopenmp -flto -fcommon -funroll-loops -ffast-math -fwrapv -fsigned-char -funsigned-char -fsyntax-only -fdiagnostics-color -fno-diagnostics-color --version --help -dumpversion -dumpmachine -M -MM".split(
    " ",
  ),
);
/** Warnings except `-Wl,` `-Wa,` and `-Wp,`, which pass options on; levels, standards, machines, definitions, libraries by name. */
const compilerFamilies =
  /^(-W(?![lap],)[a-z][\w+=-]*|-O[0-3sgz]?|-Ofast|-g[0-3]|-ggdb[0-3]?|-std=[\w+:]+|-m(32|64|arch=[\w.-]+|tune=[\w.-]+|cpu=[\w.-]+|avx\d*|sse[\d.]*)|-D\w+(=[\w".+-]*)?|-U\w+|-l[\w+.-]+|-fsanitize=[\w,-]+|-fvisibility=\w+|-fdiagnostics-color=\w+)$/;

/** Adds the effects of a C compiler: it reads its operands and writes what `-o` names; an option that is not listed may run a program. */
export function runCompiler(words: readonly Word[], effects: Effects): void {
  let output: Word | undefined;
  const sources: Word[] = [];
  for (let at = 1; at < words.length; at++) {
    const word = words[at];
    if (!word) return;
    const { value } = word;
    const [, letter = "", attached = ""] = /^-([oILDUlx])(.*)$/.exec(value) ?? [];
    if (compilerFlags.has(value) || compilerFamilies.test(value)) continue;
    if (letter !== "") {
      const given = attached === "" ? words[++at] : { ...word, value: attached };
      if (letter === "o") output = given;
      if (given && /[IL]/.test(letter)) effects.uses.push(...usesIn(given, "look"));
    } else if (value.startsWith("-") && value !== "-") {
      effects.dangers.push({ at, why: `option ${value} is not known to be harmless` });
    } else if (value.startsWith("@")) {
      effects.dangers.push({ at, why: `${value} is a file with more options` });
    } else {
      if (value === "-")
        effects.dangers.push({ at, why: "its source comes from its input, and may include other files" });
      sources.push(word);
    }
  }
  for (const word of sources) effects.uses.push(...usesIn(word, "read"));
  const stops = words.find(({ value }) => /^-[cS]$/.test(value))?.value;
  const printed = words.some(({ value }) => /^(-E|-M|-MM|-fsyntax-only|-v|--version|--help|-dump.*)$/.test(value));
  if (output) effects.uses.push({ path: output.value, glob: output.glob, as: "write" });
  else if (!printed)
    effects.uses.push(...writtenFor(sources, stops).map((path) => ({ path, glob: false, as: "write" as const })));
}

/** Returns the names that a compiler chooses by itself. */
function writtenFor(sources: readonly Word[], stops: string | undefined): string[] {
  if (stops === undefined) return ["a.out"];
  const ending = stops === "-c" ? ".o" : ".s";
  return sources.map(({ value }) => value.replace(/^.*\//, "").replace(/\.[^.]*$/, "") + ending);
}

const tarLettersWithValue = "fTXCbIFHgKLNV";
const readTarOptions = optionReader({
  flag: "-c -t -r -u -A -d -v -z -j -J -a -k -p -m -h -O -W -S -l -s -i --create --list --append --update --catenate --diff --verbose --gzip --bzip2 --xz --zstd --auto-compress --dereference --totals --numeric-owner --no-recursion --sort --no-same-owner --no-same-permissions --keep-old-files --help --version --wildcards --anchored --one-file-system --sparse",
  maybe: "--check-links --warning --quoting-style --show-transformed-names",
  text: "--exclude --transform --xform --strip-components --owner --group --mode --mtime --format -b -H --format --sort",
  read: "-X --exclude-from",
  write: "-f --file",
  run: "-C --directory --one-top-level -x --extract --get -P --absolute-names --checkpoint --checkpoint-action --to-command -I --use-compress-program --rsh-command --rmt-command --info-script --new-volume-script -F -T --files-from -g --listed-incremental --delete --remove-files --recursive-unlink --overwrite --unlink-first -U -M -L",
});

/** Adds the effects of tar: it writes or reads the archive; unpacking writes files that the line does not name. */
export function runTar(words: readonly Word[], effects: Effects): void {
  const { options, operands } = readTarOptions(spelledOut(words), 1);
  const reads = options.some(({ name }) => /^(-t|--list|-d|--diff|-x|--extract|--get)$/.test(name));
  effects.dangers.push(...dangersOf("tar", options));
  for (const option of options) addArchive(option, reads, effects);
  const links = options.some(({ name }) => name === "-h" || name === "--dereference");
  const below = { hidden: true, links };
  for (const { word } of operands) effects.uses.push(...(reads ? usesIn(word, "look") : usesIn(word, "read", below)));
}

function addArchive({ means, value, at }: Option, reads: boolean, effects: Effects): void {
  if (!value || value.value === "-") return;
  if (means === "read") effects.uses.push(...usesIn(value, means));
  if (means !== "write") return;
  // tar reaches other machines by `host:file`.
  if (value.value.includes(":")) effects.dangers.push({ at, why: "an archive with : is on another machine" });
  effects.uses.push({ path: value.value, glob: value.glob, as: reads ? "read" : "write" });
}

/** Converts the old style, `tar czf x.tgz src`, into options: each letter that takes a value takes the next word. */
function spelledOut(words: readonly Word[]): Word[] {
  const [program, letters, ...rest] = words;
  if (!program || !letters || letters.value.startsWith("-")) return [...words];
  const spelled: Word[] = [];
  for (const letter of letters.value) {
    const value = tarLettersWithValue.includes(letter) ? rest.shift() : undefined;
    spelled.push({ ...letters, value: `-${letter}${value?.value ?? ""}` });
  }
  return [program, ...spelled, ...rest];
}

const readManagerOptions = optionReader({
  flag: "-s --silent -q --quiet -d --verbose --if-present -ws --workspaces --include-workspace-root -iwr --no-audit --no-fund --no-save -D --save-dev -E --save-exact -P --save-prod -O --save-optional --production --prod --dev --dry-run --json --long --all --ignore-scripts --legacy-peer-deps --prefer-offline --offline --frozen-lockfile --no-frozen-lockfile --no-optional --no-package-lock --parseable -p --depth --no-color --color --progress --no-progress --omit-lockfile-registry-resolved --force -f --help -h --version -v -r --recursive --stream --parallel --run --silent --watch",
  text: "-w --workspace --loglevel --omit --include --depth --filter -F --only",
});

/** Sub-commands that do to the project what they say. The scripts of a package belong to the project. */
const ordinary = new Set(
  "test t tst run run-script ci clean-install install i add uninstall remove rm un ls list la ll outdated view info show audit start stop restart build pack version why explain ping whoami root prefix bin fund search dedupe prune rebuild update up link lint help".split(
    " ",
  ),
);

/** Adds the effects of npm, pnpm or bun: a rule for their command does not cover another directory, shell or configuration. */
export function runPackages(name: string, words: readonly Word[], effects: Effects): void {
  const end = words.findIndex(({ value }) => value === "--");
  const own = end === -1 ? words : words.slice(0, end);
  const { options, operands } = readManagerOptions(own, 1);
  for (const { name: option, means, value, at } of options) {
    if (means === undefined) effects.dangers.push({ at, why: `option ${option} is not known to be harmless` });
    if (value) effects.uses.push(...usesIn(value, "look"));
  }
  const [command, ...rest] = operands;
  if (command && !ordinary.has(command.word.value)) {
    effects.dangers.push({ at: command.at, why: `${name} ${command.word.value} is not known to be harmless` });
  }
  for (const { word } of rest) effects.uses.push(...usesIn(word, "may"));
  for (const word of words.slice(own.length + 1)) effects.uses.push(...usesIn(word, "may"));
}

/**
 * Checks if a sed script only edits text: no `e`, `w`, `W`, `r`, `R` command, and no `e` or `w` flag. Knows less of the
 * language than sed does, and returns false where it is uncertain.
 */
export function isTameSed(script: string): boolean {
  let rest = script;
  for (;;) {
    rest = rest.replace(/^[\s;}]+/, "");
    if (rest === "") return true;
    const command = afterAddresses(rest);
    const behind = command === undefined ? undefined : afterCommand(command);
    if (behind === undefined) return false;
    rest = behind;
  }
}

/** Returns the text after the addresses of a command: `5`, `$`, `/x/`, `2,/x/`, `0~3`, with or without `!`. */
function afterAddresses(text: string): string | undefined {
  let rest = text;
  for (let i = 0; i < 2; i++) {
    const length = rest.startsWith("/")
      ? addressLength(rest)
      : (/^(?:\d+(?:~\d+)?|\$|[+~]\d+)/.exec(rest)?.[0].length ?? 0);
    if (length === undefined) return undefined;
    rest = rest.slice(length).replace(/^[ \t]+/, "");
    if (length === 0 || !rest.startsWith(",")) break;
    rest = rest.slice(1).replace(/^[ \t]+/, "");
  }
  return rest.replace(/^[ \t]*!?[ \t]*/, "");
}

function addressLength(text: string): number | undefined {
  const end = endOfExpression(text, "/", 1);
  return end === -1 ? undefined : end + 1 + (/^[IM]*/.exec(text.slice(end + 1))?.[0].length ?? 0);
}

/** Returns the text after one command; undefined if the command is not known to be harmless. */
function afterCommand(text: string): string | undefined {
  const plain = /^(?:[=dDgGhHnNpPxz{]|[qQ]\d*)[ \t]*(?=[;}\n]|$)|^\{/.exec(text)?.[0];
  if (plain !== undefined) return text.slice(plain.length);
  const named =
    /^(?:[:btT][ \t]*\w*[ \t]*(?=[;}\n]|$)|#[^\n]*|[aic][ \t]*[^\\\n]*(?=\n|$)|l[ \t]*\d*(?=[;}\n]|$))/.exec(text)?.[0];
  if (named !== undefined) return text.slice(named.length);
  const [, kind, mark = ""] = /^([sy])([^\\\n\w\s])/.exec(text) ?? [];
  return kind === undefined ? undefined : afterSubstitution(text.slice(2), mark, kind === "s");
}

function afterSubstitution(text: string, mark: string, hasFlags: boolean): string | undefined {
  const expression = hasFlags ? endOfExpression(text, mark, 0) : endOfText(text, mark, 0);
  const end = endOfText(text, mark, expression + 1);
  if (expression === -1 || end === -1) return undefined;
  const flags = hasFlags ? (/^[gpIiMm0-9]*/.exec(text.slice(end + 1))?.[0] ?? "") : "";
  const rest = text.slice(end + 1 + flags.length).replace(/^[ \t]+/, "");
  return rest === "" || /^[;}\n#]/.test(rest) ? rest : undefined;
}

/** Returns the index of the next mark without a backslash before it, or -1. */
function endOfText(text: string, mark: string, from: number): number {
  for (let at = from; at < text.length; at++) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === mark) return at;
  }
  return -1;
}

/**
 * Returns the same in a regular expression. In new versions of sed a mark in a set `[…]` does not end the expression; old
 * ones take the set as open, and refuse the script. Sets that versions may close at different places return -1.
 */
function endOfExpression(text: string, mark: string, from: number): number {
  for (let at = from; at < text.length; at++) {
    const character = text[at];
    if (character === mark) return at;
    if (character === "\n") return -1;
    if (character === "\\") at += 1;
    if (character !== "[") continue;
    set.lastIndex = at;
    const found = set.exec(text)?.[0];
    if (found === undefined || found.includes(`\\${mark}`)) return -1;
    at += found.length - 1;
  }
  return -1;
}

const set = /\[\^?(?:\[:[a-z]+:\]|[^\]\\[\n]|\\[^\]\n])+\]/y;

/** Checks if an awk program neither runs programs nor opens other files; returns false where it is uncertain. */
export function isTameAwk(program: string): boolean {
  if (awkReaches.test(program)) return false;
  // In expressions and comments quotes need not come in pairs.
  const isPaired = !/[/#]/.test(program);
  const bare = (isPaired ? program.replace(/"(?:[^"\\\n]|\\.)*"/g, "0") : program).replaceAll("||", "");
  if (bare.includes("|")) return false;
  if (isPaired && !bare.includes('"')) return !/print[^;{}]*>/.test(bare);
  return !bare.includes(">") || !bare.includes("print");
}

/** Names by which awk reaches programs and files. A number may stand before one without a space. */
const awkReaches =
  /\b(\d\w*)?(system|getline|close|fflush|ARGV|ARGC|ENVIRON|PROCINFO|SYMTAB|FUNCTAB|extension|load|include)\b|\\\n|@/;
