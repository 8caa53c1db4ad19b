import { type Effects, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";

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

/** Adds what an expression of find does: what it tests is harmless, what it runs, removes or writes is not. */
export function runFind(words: readonly Word[], effects: Effects): void {
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
