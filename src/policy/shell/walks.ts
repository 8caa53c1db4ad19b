import { type Below, type Effects, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";
import type { Option } from "./options.ts";
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
