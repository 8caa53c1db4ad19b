import { type Effects, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";
import { dangersOf, type Option, optionReader } from "./options.ts";

const withValue = "fTXCbIFHgKLNV";
const reader = optionReader({
  flag: "-c -t -r -u -A -d -v -z -j -J -a -k -p -m -h -O -W -S -l -s -i --create --list --append --update --catenate --diff --verbose --gzip --bzip2 --xz --zstd --auto-compress --dereference --totals --numeric-owner --no-recursion --sort --no-same-owner --no-same-permissions --keep-old-files --help --version --wildcards --anchored --one-file-system --sparse",
  maybe: "--check-links --warning --quoting-style --show-transformed-names",
  text: "--exclude --transform --xform --strip-components --owner --group --mode --mtime --format -b -H --format --sort",
  read: "-X --exclude-from",
  write: "-f --file",
  run: "-C --directory --one-top-level -x --extract --get -P --absolute-names --checkpoint --checkpoint-action --to-command -I --use-compress-program --rsh-command --rmt-command --info-script --new-volume-script -F -T --files-from -g --listed-incremental --delete --remove-files --recursive-unlink --overwrite --unlink-first -U -M -L",
});

/** Adds the effects of tar: it writes or reads the archive; unpacking writes files that the line does not name. */
export function runTar(words: readonly Word[], effects: Effects): void {
  const { options, operands } = reader(spelledOut(words), 1);
  const reads = options.some(({ name }) => /^(-t|--list|-d|--diff|-x|--extract|--get)$/.test(name));
  effects.dangers.push(...dangersOf("tar", options));
  for (const option of options) add(option, reads, effects);
  const links = options.some(({ name }) => name === "-h" || name === "--dereference");
  const below = { hidden: true, links };
  for (const { word } of operands) effects.uses.push(...(reads ? usesIn(word, "look") : usesIn(word, "read", below)));
}

function add({ means, value, at }: Option, reads: boolean, effects: Effects): void {
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
    const value = withValue.includes(letter) ? rest.shift() : undefined;
    spelled.push({ ...letters, value: `-${letter}${value?.value ?? ""}` });
  }
  return [program, ...spelled, ...rest];
}
