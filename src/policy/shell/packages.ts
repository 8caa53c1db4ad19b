import { type Effects, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";
import { optionReader } from "./options.ts";

const reader = optionReader({
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
  const { options, operands } = reader(own, 1);
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
