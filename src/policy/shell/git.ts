import { type Effects, type GitObjects, pathIn, type Use, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";
import { dangersOf, type Operand, type Option, type OptionReader, type OptionTable, optionReader } from "./options.ts";

const globals = optionReader({
  flag: "--no-pager -P --no-optional-locks --no-replace-objects --literal-pathspecs --glob-pathspecs --noglob-pathspecs --version -v --help -h --html-path --man-path --info-path",
  look: "-C --git-dir --work-tree",
  text: "-c --namespace --config-env",
});
const harmlessGlobals = /^(--no-|-P$|--literal|--glob|--noglob|--version$|-v$|--help$|-h$|--html|--man|--info)/;

/** Options of sub-commands that show differences. */
const diff: OptionTable = {
  flag: "-p -u --patch -s --no-patch --raw --patch-with-raw --patch-with-stat --indent-heuristic --no-indent-heuristic --minimal --patience --histogram --numstat --shortstat --summary --compact-summary --name-only --name-status --no-color --no-renames --rename-empty --no-rename-empty --check --full-index --binary --pickaxe-all --pickaxe-regex -R -a --text --ignore-cr-at-eol --ignore-space-at-eol -b --ignore-space-change -w --ignore-all-space --ignore-blank-lines -W --function-context --exit-code -q --quiet --no-ext-diff --no-textconv --no-prefix --default-prefix -z --cached --staged --merge-base -c --cc -t -m -1 --base --ours --theirs -0 --no-color-moved --no-relative -h --help -v --verbose",
  maybe:
    "-U --unified --stat --dirstat --submodule --color --color-moved --color-words --word-diff --abbrev -B -M -C -D --break-rewrites --find-renames --find-copies --find-copies-harder --irreversible-delete --relative --ignore-submodules",
  text: "--ws-error-highlight --color-moved-ws --anchored --diff-algorithm --diff-filter -S -G -l --find-object --inter-hunk-context --word-diff-regex --src-prefix --dst-prefix --line-prefix --output-indicator-new --output-indicator-old --output-indicator-context --skip-to --rotate-to --stat-width --stat-name-width --stat-count --stat-graph-width -I --ignore-matching-lines",
  read: "-O",
  write: "--output",
  run: "--ext-diff --textconv --no-index",
};

/** Options of sub-commands that walk through history. */
const history: OptionTable = {
  flag: "--oneline --graph --all --no-decorate --source --use-mailmap --full-diff --follow --merges --no-merges --first-parent --reverse --topo-order --date-order --author-date-order --walk-reflogs -g --boundary --left-right --cherry --cherry-pick --cherry-mark --left-only --right-only --not --full-history --simplify-merges --simplify-by-decoration --ancestry-path --relative-date --parents --children --no-notes --show-pulls --dense --sparse -i --regexp-ignore-case -E --extended-regexp -F --fixed-strings -P --perl-regexp --all-match --invert-grep --abbrev-commit --no-abbrev-commit --no-expand-tabs --no-mailmap --reflog --objects --count --left-right --timestamp -e --email -n --numbered --summary --clear-decorations --max-parents --min-parents",
  maybe: "--branches --tags --remotes --decorate --no-walk --format --pretty --show-notes --notes",
  text: "--encoding --max-count --skip --since --after --until --before --author --committer --grep --grep-reflog --exclude --glob --date -L --decorate-refs --decorate-refs-exclude",
};

const both: OptionTable = joined(diff, history, { text: "-n" });

const transfer: OptionTable = {
  flag: "--all -a --append --atomic --dry-run -f --force -k --keep --multiple -p --prune -P --prune-tags -n --no-tags -t --tags -q --quiet -v --verbose --progress --no-progress -4 -6 --unshallow --update-shallow -r --ff-only --no-ff --ff --no-rebase --autostash --no-autostash --squash --no-squash --no-commit --commit --stat --no-stat --no-edit --allow-unrelated-histories --set-upstream --no-recurse-submodules --no-verify",
  maybe: "--rebase --signed",
  text: "--depth --deepen --shallow-since --shallow-exclude -j --jobs --refmap -s --strategy -X --strategy-option -o --server-option --negotiation-tip --filter",
  run: "--recurse-submodules --upload-pack -u --exec",
};

/** Sub-commands whose options are known. All are strict: an option that is not listed asks. */
const subcommands: ReadonlyMap<string, OptionReader> = new Map(
  Object.entries<OptionTable>({
    add: {
      flag: "-A --all -u --update -p --patch -n --dry-run -v --verbose -f --force -N --intent-to-add --ignore-errors --renormalize --refresh --sparse --no-all --ignore-removal",
      text: "--chmod",
    },
    blame: {
      flag: "-l -t -f -n -p -e -w -s -c -b --root --show-stats --porcelain --line-porcelain --incremental --show-email --show-name --show-number --progress --no-progress --date",
      maybe: "-M -C --abbrev --score-debug",
      text: "-L --ignore-rev --date",
      read: "--contents -S --ignore-revs-file",
    },
    branch: {
      flag: "-a --all -r --remotes -v -vv --verbose -l --list -d -D --delete -m -M --move -c -C --copy -f --force --show-current --no-track -q --quiet --no-color -i --ignore-case --unset-upstream --no-column",
      maybe: "--color --column --abbrev --merged --no-merged -t --track",
      text: "--contains --no-contains --points-at --format --sort -u --set-upstream-to",
      run: "--edit-description",
    },
    "cat-file": { flag: "-t -s -e -p -v", run: "--textconv --filters --batch --batch-check" },
    checkout: {
      flag: "-q --quiet -f --force -t --no-track --no-guess --guess --detach -d -m --merge --ours --theirs -2 -3 -p --patch --overlay --no-overlay --progress --no-progress -l --ignore-skip-worktree-bits --overwrite-ignore",
      maybe: "--track",
      text: "-b -B --orphan --conflict",
      run: "--recurse-submodules --pathspec-from-file",
    },
    "check-ignore": { flag: "-q -v -z -n --quiet --verbose --non-matching --no-index" },
    "cherry-pick": {
      flag: "-n -x -s --no-commit --signoff --ff --abort --continue --skip --quit --allow-empty --keep-redundant-commits",
      text: "-m --mainline -X --strategy --strategy-option --cleanup",
      run: "-e --edit -S --gpg-sign",
    },
    clean: { flag: "-d -f -n -x -X -q --force --dry-run --quiet", text: "-e --exclude" },
    clone: {
      flag: "-l --local --no-hardlinks -s --shared --dissociate -n --no-checkout --bare --mirror --single-branch --no-single-branch --no-tags --shallow-submodules -q --quiet -v --verbose --progress --no-progress -4 -6",
      text: "-b --branch -o --origin --depth --shallow-since --shallow-exclude -j --jobs --filter --server-option",
      run: "--recurse-submodules --recursive --upload-pack -u -c --config --template --reference --reference-if-able --separate-git-dir",
    },
    commit: {
      flag: "-a --all --amend --no-edit -n --no-verify -s --signoff --no-signoff -v --verbose -q --quiet --allow-empty --allow-empty-message --dry-run --short -o --only -i --include --no-gpg-sign --reset-author --no-post-rewrite --no-status --status --porcelain --long --branch -z --null -p --patch",
      maybe: "-u --untracked-files",
      text: "-m --message --author --date --fixup --squash --cleanup --trailer -C --reuse-message",
      read: "-F --file -t --template",
      run: "-e --edit -c --reedit-message -S --gpg-sign --pathspec-from-file --interactive",
    },
    "count-objects": { flag: "-v -H" },
    describe: {
      flag: "--all --tags --contains --exact-match --always --long --first-parent --debug",
      maybe: "--dirty --broken --abbrev",
      text: "--match --exclude --candidates",
    },
    diff: both,
    "diff-index": both,
    "diff-tree": both,
    "diff-files": both,
    fetch: transfer,
    "for-each-ref": {
      flag: "--ignore-case --count",
      text: "--sort --format --count --points-at --contains --no-contains",
      maybe: "--merged --no-merged",
    },
    grep: {
      flag: "-n --line-number -i --ignore-case -l --files-with-matches --name-only -L --files-without-match -w --word-regexp -c --count -v --invert-match -E --extended-regexp -F --fixed-strings -P --perl-regexp -G --basic-regexp -o --only-matching -h -H -I -a --text -q --quiet -W --function-context -p --show-function --cached --untracked --and --or --not --break --heading --all-match --full-name -z --null --column --no-color --recurse-submodules -r --recursive --no-recursive -1",
      maybe: "--color",
      text: "-e -A -B -C --after-context --before-context --context -m --max-count --max-depth --threads",
      read: "-f",
      run: "-O --open-files-in-pager --no-index --textconv --ext-grep --exclude-standard",
    },
    log: both,
    "ls-files": {
      flag: "-c --cached -d --deleted -m --modified -o --others -i --ignored -s --stage -u --unmerged -k --killed --directory --no-empty-directory --eol -z -t -v -f --full-name --error-unmatch --exclude-standard --deduplicate",
      maybe: "--abbrev",
      text: "-x --exclude --format",
      read: "-X --exclude-from",
    },
    "ls-remote": {
      flag: "-h --heads -t --tags --refs -q --quiet --exit-code --get-url --symref --branches",
      text: "--sort -o --server-option",
      run: "--upload-pack --exec -u",
    },
    "ls-tree": {
      flag: "-d -r -t -l --long -z --name-only --name-status --object-only --full-name --full-tree",
      maybe: "--abbrev",
      text: "--format",
    },
    merge: {
      flag: "-n --no-commit --commit --ff --no-ff --ff-only --squash --no-squash --stat --no-stat -q -v --abort --continue --quit --no-edit --no-verify --signoff --allow-unrelated-histories --autostash --no-autostash --progress",
      text: "-m -s --strategy -X --strategy-option --cleanup --into-name",
      read: "-F --file",
      run: "-e --edit -S --gpg-sign",
    },
    "merge-base": { flag: "-a --all --octopus --is-ancestor --independent --fork-point" },
    mv: { flag: "-f -k -n -v --force --dry-run --verbose" },
    pull: transfer,
    push: {
      flag: "-u --set-upstream --all --branches --tags --follow-tags --no-follow-tags --mirror -n --dry-run -v --verbose -q --quiet --porcelain --progress --no-progress --no-verify -d --delete -f --force --atomic --prune --thin --no-thin -4 -6",
      maybe: "--force-with-lease --force-if-includes",
      text: "-o --push-option",
      run: "--recurse-submodules --receive-pack --exec --repo --signed",
    },
    rebase: {
      flag: "--abort --continue --skip --quit --autostash --no-autostash -q -v --verbose --quiet --ff --no-ff -f --force-rebase --stat -n --no-stat --keep-empty --no-keep-empty --rebase-merges --autosquash --no-autosquash --root --fork-point --no-verify --signoff",
      text: "--onto -s --strategy -X --strategy-option",
      run: "-x --exec -i --interactive --edit-todo -S",
    },
    reflog: both,
    remote: { flag: "-v --verbose" },
    reset: {
      flag: "--soft --mixed --hard --merge --keep -q --quiet -N --intent-to-add -p --patch",
      run: "--pathspec-from-file",
    },
    restore: {
      flag: "-W --worktree -S --staged -q --quiet --ours --theirs -m --merge -p --patch --overlay --no-overlay --progress --no-progress --ignore-unmerged",
      text: "-s --source --conflict",
      run: "--pathspec-from-file",
    },
    "rev-list": both,
    "rev-parse": {
      flag: "--show-toplevel --show-prefix --show-cdup --git-dir --absolute-git-dir --git-common-dir --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository --verify -q --quiet --symbolic --symbolic-full-name --all --branches --tags --remotes --not --no-flags --flags --revs-only --no-revs --abbrev-ref --sq",
      maybe: "--short --abbrev-ref --branches --tags --remotes",
    },
    revert: {
      flag: "-n --no-commit --no-edit -s --signoff --abort --continue --skip --quit",
      text: "-m --mainline",
      run: "-e --edit -S --gpg-sign",
    },
    rm: { flag: "-r -f -n -q --cached --ignore-unmatch --force --dry-run --quiet", run: "--pathspec-from-file" },
    shortlog: both,
    show: both,
    "show-ref": { flag: "--head --heads --tags -d --dereference -s --hash --verify -q --quiet --branches" },
    stash: joined(diff, {
      flag: "-k --keep-index --no-keep-index -u --include-untracked --all -S --staged --index",
      text: "--message",
      run: "--pathspec-from-file",
    }),
    status: {
      flag: "-s --short -b --branch -v --verbose --long -z --show-stash --no-show-stash --ahead-behind --no-ahead-behind --renames --no-renames --no-column -vv",
      maybe: "-u --untracked-files --ignored --porcelain --column --find-renames --ignore-submodules",
    },
    switch: {
      flag: "-d --detach -q --quiet -f --force --discard-changes -m --merge --guess --no-guess --no-track --progress --no-progress",
      maybe: "-t --track",
      text: "-c -C --create --force-create --orphan --conflict",
      run: "--recurse-submodules",
    },
    tag: {
      flag: "-a --annotate -l --list -d --delete -f --force -i --ignore-case --no-column",
      maybe: "-n --column --merged --no-merged --color",
      text: "-m --message --sort --format --contains --no-contains --points-at --cleanup",
      read: "-F --file",
      run: "-s --sign -u --local-user -v --verify -e --edit",
    },
    version: {},
    worktree: { flag: "-v --verbose --porcelain -z" },
  }).map(([name, table]) => [name, optionReader(table)]),
);

/** Options that make any sub-command print content of files, or find it. */
const patches =
  /^(-p|-u|--patch|--patch-with-raw|--patch-with-stat|-L|-S|-G|-U|--unified|--cc|-c|-m|-W|--function-context|--word-diff|--color-words|--word-diff-regex|--binary|--check|--find-object|-O|-I|--ignore-matching-lines)$/;
/** Options in place of which a sub-command that prints content prints none. */
const summaries =
  /^(-s|--no-patch|--stat|--numstat|--shortstat|--dirstat|--summary|--compact-summary|--name-only|--name-status|-q|--quiet)$/;
const patching = new Set([
  "diff",
  "diff-files",
  "diff-index",
  "diff-tree",
  "log",
  "reflog",
  "show",
  "stash",
  "rev-list",
]);
/** Sub-commands that change files that their words do not name. */
const rewriting = new Set("stash checkout switch reset restore clean merge pull rebase revert cherry-pick".split(" "));
const transferring = new Set(["clone", "fetch", "ls-remote", "pull", "push"]);
/** Sub-commands that change no file of the work tree. */
const still = new Set(
  "add blame branch cat-file check-ignore commit config count-objects describe diff diff-index diff-tree diff-files fetch for-each-ref grep log ls-files ls-remote ls-tree merge-base push reflog remote rev-list rev-parse shortlog show show-ref status tag version".split(
    " ",
  ),
);

/** Checks if a git command changes no file of the work tree. */
export function runsWithoutFiles(words: readonly Word[]): boolean {
  const [first] = globals(words, 1, true).operands;
  return first === undefined || still.has(first.word.value);
}

/** Checks if a sub-command prints content of files, or of objects by their id. */
function printsContent(name: string, options: readonly Option[]): boolean {
  const has = (names: RegExp) => options.some(({ name }) => names.test(name));
  if (name === "blame" || name === "grep") return true;
  if (name === "cat-file") return !has(/^-[tse]$/);
  if (name === "ls-files") return has(/^(-s|--stage|--format|-u|--unmerged)$/);
  if (name === "ls-tree") return !has(/^(--name-only|--name-status)$/);
  if (name === "status" || name === "commit") return has(/^(-v|-vv|--verbose|-p|--patch)$/);
  if (patching.has(name) && has(patches)) return true;
  if (name === "diff" || name === "show") return !has(summaries);
  return has(/^(-p|--patch)$/) && !/^(cat-file|fetch|pull|clone)$/.test(name);
}

/** Sub-commands that neither print nor restore content of objects, apart from those whose options are known. */
const withoutObjects = new Set("am apply gc help init maintenance var".split(" "));

/** Returns the objects whose content a sub-command prints. Undefined for one that prints only their ids. */
function printedObjects(name: string, options: readonly Option[], rest: readonly Operand[]): GitObjects | undefined {
  if (name === "ls-files" || name === "ls-tree") return undefined;
  if (name === "diff" || name === "diff-files" || name === "grep") {
    const isOfWorkTree = rest.length === (name === "grep" ? 1 : 0);
    return isOfWorkTree && !options.some(({ name }) => /^--(cached|staged|merge-base)$/.test(name))
      ? "index"
      : "history";
  }
  return "history";
}

/** Adds a read of what the objects of the repository hold, or only those at a path of a revision. */
function addObjects(objects: GitObjects, effects: Effects, path?: string): void {
  const limits = path === undefined ? {} : { limits: [path] };
  effects.uses.push({ path: ".", glob: false, as: "read", within: { as: "objects", objects, ...limits } });
}

/** Adds the content that a sub-command prints: that of the paths among its words, otherwise of the whole repository. */
function addPrinted(name: string, { options, operands: rest, end }: ReturnType<OptionReader>, effects: Effects): void {
  const hasPattern = name === "grep" && !options.some(({ name }) => name === "-e" || name === "-f");
  const operands = hasPattern ? rest.slice(1) : rest;
  const below = { hidden: true, links: false, except: [".git"] };
  const objects = printedObjects(name, options, rest);
  const limits = linesOf(options);
  const count = operands.length + limits.length;
  let [named, isOpen] = [0, false];
  for (const { word, at } of operands) {
    const { value } = word;
    const path = /^[^:]*:(?:[0-3]:)?([^:].*)$/.exec(value)?.[1];
    if (/^:([!^]|\(exclude\))/.test(value)) continue;
    // A pattern, a commit by its message, or other magic.
    if (/[*?[\]\\()]|^:[^0-3\w.]|:$/.test(value)) isOpen = true;
    else if (at > end) limits.push(value.replace(/^:/, ""));
    else if (path !== undefined) {
      effects.uses.push({ path, glob: false, as: "read", below, within: { as: "top" } });
      effects.uses.push({ path, glob: false, as: "read", below });
      // Of a directory `show` prints the names.
      if (objects !== undefined && name !== "show" && name !== "cat-file") addObjects(objects, effects, path);
      named += 1;
    } else if (end === Number.POSITIVE_INFINITY) limits.push(value);
  }
  // `REVISION:PATH` alone prints that path.
  if (named > 0 && named === count) return;
  const untracked = options.some(({ name }) => /^--(no-index|untracked)$/.test(name)) || rest.some(isNull);
  // With `--full-diff` paths only select commits; the operands of stash and reflog are no paths.
  if (isOpen || /^(stash|reflog)$/.test(name) || options.some(({ name }) => name === "--full-diff")) limits.length = 0;
  effects.uses.push({
    path: ".",
    glob: false,
    as: "read",
    below,
    within: { as: "whole", limits, ...(untracked && { untracked }), ...(objects && { objects }) },
  });
  for (const limit of limits) effects.uses.push({ path: limit, glob: false, as: name === "blame" ? "read" : "may" });
}

const isNull = ({ word }: Operand) => word.value === "/dev/null";

/** `-L RANGE:FILE` names a file after the last colon. */
function linesOf(options: readonly Option[]): string[] {
  return options.flatMap(({ name, value }) =>
    name === "-L" && value?.value.includes(":") ? value.value.slice(value.value.lastIndexOf(":") + 1) : [],
  );
}

/** Adds the files of the work tree that a sub-command changes. */
function addChanged(name: string, options: readonly Option[], rest: readonly Operand[], effects: Effects): void {
  const below = { hidden: true, links: false, except: [".git"] };
  const words = rest.map(({ word }) => word);
  const target = words.at(-1);
  if (name === "rm" || name === "mv") {
    for (const word of words) effects.uses.push({ path: word.value, glob: word.glob, as: "change", below });
    // git expands patterns by itself.
    for (const { word, at } of rest)
      if (/[*?[\\]|^:/.test(word.value)) effects.dangers.push({ at, why: `${word.value} stands for several files` });
  }
  if (name === "mv" && target) {
    for (const { value, glob } of words.slice(0, -1)) {
      effects.uses.push({ path: value, glob, as: "read", below });
      const path = `${target.value}/${value.replace(/\/+$/, "").replace(/^.*\//, "")}`;
      effects.uses.push({ path, glob: false, as: "change" });
    }
  }
  if (name === "clone") {
    const base = words[0]?.value.replace(/\/+$|\.git\/*$/g, "").replace(/^.*[/:]/, "");
    effects.uses.push({ path: words[1]?.value ?? base ?? ".", glob: false, as: "write" });
  }
  if (!rewriting.has(name) || isDry(name, options, rest)) return;
  if (name !== "clean") addObjects("restored", effects);
  const limits = name === "restore" || name === "checkout" || name === "clean" ? words.map(({ value }) => value) : [];
  const isPlain = limits.every((limit) => !/[*?[\\]|^:/.test(limit));
  effects.uses.push({
    path: ".",
    glob: false,
    as: "change",
    below,
    within: { as: "whole", limits: isPlain ? limits : [], ...(name === "clean" && { untracked: true }) },
  });
}

/** Checks if a sub-command that may change files changes none this time. */
function isDry(name: string, options: readonly Option[], rest: readonly Operand[]): boolean {
  const has = (names: RegExp) => options.some(({ name }) => names.test(name));
  // `--no-dry-run` and `--no-staged` lift what stands before them.
  if (has(/^--no-[ds]/)) return false;
  if (name === "stash") return /^(list|show|drop|clear)$/.test(rest[0]?.word.value ?? "");
  if (name === "reset") return !has(/^--(hard|merge|keep)$/);
  if (name === "restore") return has(/^(-S|--staged)$/) && !has(/^(-W|--worktree)$/);
  return name === "clean" && has(/^(-n|--dry-run)$/);
}

/** First operands of a sub-command that change what it does. */
const secondary: ReadonlyMap<string, RegExp> = new Map([
  ["remote", /^(show|get-url|prune|update)$/],
  ["stash", /^(push|pop|apply|list|show|drop|clear|save|branch)$/],
  ["worktree", /^list$/],
  ["reflog", /^(show|exists|HEAD|[\w/.-]+)$/],
]);

/** Adds the effects of a git command beyond the purpose of its sub-command. */
export function runGit(words: readonly Word[], effects: Effects): void {
  const { options, operands } = globals(words, 1, true);
  const { directory, repository: at } = placesIn(options);
  const named = addGlobals(options, effects);
  addSubcommand(words, operands, effects);
  if (at === undefined) return;
  // Also a sub-command that names nothing runs the hooks of that repository.
  effects.uses.push({ path: ".", glob: false, as: "look", within: { as: "objects" } });
  effects.uses = effects.uses.map((use, i) => {
    if (use.within) return { ...use, within: { ...use.within, at } };
    return i < named ? use : { ...use, path: pathIn(directory, use.path) };
  });
}

/** Returns the files that `git apply` and `git am` read. */
export function patchesOf(words: readonly Word[]): string[] {
  const { options, operands } = globals(words, 1, true);
  const [first, ...rest] = operands;
  if (!/^(apply|am)$/.test(first?.word.value ?? "")) return [];
  const { directory } = placesIn(options);
  return rest.filter(({ word }) => !word.value.startsWith("-")).map(({ word }) => pathIn(directory, word.value));
}

/** Returns the options of a sub-command, if they are known. */
export function gitOptions(words: readonly Word[]): readonly Option[] | undefined {
  const [first] = globals(words, 1, true).operands;
  return first && subcommands.get(first.word.value)?.(words, first.at + 1).options;
}

/** Returns the options and operands of a `git push` without options before it. */
export const pushWords = (words: readonly Word[]) => subcommands.get("push")?.(words, 2);

/**
 * Returns the directory to which all `-C` lead, of which an empty one changes nothing, and that from which git then looks for the
 * repository. Undefined without such options.
 */
function placesIn(options: readonly Option[]): { directory: string | undefined; repository: string | undefined } {
  const valuesOf = (wanted: string) =>
    options.flatMap(({ name, value }) => (name === wanted && value && value.value !== "" ? value.value : []));
  const directory = valuesOf("-C").reduce<string | undefined>(pathIn, undefined);
  const named = valuesOf("--git-dir").at(-1);
  if (named === undefined) return { directory, repository: directory };
  return { directory, repository: pathIn(directory, named.replace(/(^|\/)\.git\/*$/, "$1.")) };
}

/** Adds the effects of options before the sub-command; returns the number of uses. */
function addGlobals(options: readonly Option[], effects: Effects): number {
  for (const { name, value, at } of options) {
    // Like a `cd` it leads to another repository, which is judged where it is.
    if (!harmlessGlobals.test(name) && !(name === "-C" && value && !value.glob && !value.status))
      effects.dangers.push({ at, why: `option ${name} changes which repository or programs git uses` });
    if (value) effects.uses.push(...usesIn(value, "look"));
  }
  return effects.uses.length;
}

function addSubcommand(words: readonly Word[], operands: readonly Operand[], effects: Effects): void {
  const [first] = operands;
  if (first === undefined) return;
  const name = first.word.value;
  if (name === "config" && readsConfig(words.slice(first.at + 1))) return;
  if (name === "config") effects.uses.push(...namedSettings(words.slice(first.at)));
  const reader = subcommands.get(name);
  if (reader === undefined) {
    effects.dangers.push({ at: first.at, why: `git ${name} is not known to be harmless` });
    for (const word of words.slice(first.at + 1)) effects.uses.push(...usesIn(word, "may"));
    if (!withoutObjects.has(name)) addObjects("history", effects);
    return;
  }
  const read = reader(words, first.at + 1);
  const { options, operands: rest } = read;
  effects.dangers.push(...dangersOf(`git ${name}`, options));
  for (const { means, value } of options) {
    if (value && value.value !== "-" && (means === "read" || means === "write"))
      effects.uses.push(...usesIn(value, means));
  }
  const second = rest[0];
  const known = secondary.get(name);
  if (second && known && !known.test(second.word.value)) {
    effects.dangers.push({ at: second.at, why: `git ${name} ${second.word.value} is not known to be harmless` });
    if (name === "worktree") addObjects("history", effects);
  }
  for (const { word, at } of rest) {
    if (word.value.includes("::")) effects.dangers.push({ at, why: "an address with :: names a program" });
    effects.uses.push(...usesIn(word, "look"));
  }
  if (changesSettings(name, options, second?.word.value)) effects.uses.push(ownConfig);
  if (printsContent(name, options)) addPrinted(name, read, effects);
  addChanged(name, options, rest, effects);
  const asksRemote = name === "remote" && /^(show|prune)$/.test(second?.word.value ?? "");
  const sources = asksRemote ? rest.slice(1) : transferring.has(name) ? rest.slice(0, 1) : [];
  for (const source of sources) addSource(source, effects);
}

/** The settings of the repository, which git changes by itself. */
const ownConfig: Use = { path: ".git/config", glob: false, as: "change", within: { as: "top" } };

/** Returns the files with settings that `git config` changes, or reads: those that its options name, otherwise those of the repository. */
function namedSettings(words: readonly Word[]): Use[] {
  const { options, operands } = configReader(words, 1);
  const isQuery = /^(get|list)$/.test(operands[0]?.word.value ?? "") || options.some(({ name }) => queries.test(name));
  const files = options.flatMap(({ name, means, value }) => {
    if (name === "--global") return "~/.gitconfig";
    if (name === "--system") return "/etc/gitconfig";
    return means === "write" && value ? value.value : [];
  });
  if (files.length === 0) return isQuery ? [] : [ownConfig];
  return files.map((path) => ({ path, glob: false, as: isQuery ? "read" : "write", home: true }));
}

const queries = /^(--get|--get-all|--get-regexp|--get-urlmatch|--list|-l)$/;
const configReader = optionReader({
  flag: "--global --system --get --get-all --get-regexp --get-urlmatch --list -l",
  write: "-f --file",
  text: "--type --default --blob --comment --value --url",
});

/** Checks if a sub-command records something in the settings of the repository. */
function changesSettings(name: string, options: readonly Option[], second = ""): boolean {
  const has = (names: RegExp) => options.some(({ name }) => names.test(name));
  if (name === "remote") return /^(add|rename|remove|rm|set-branches|set-url)$/.test(second);
  if (name === "pull" || name === "fetch") return has(/^--set-upstream$/);
  if (name === "push") return has(/^(-u|--set-upstream)$/);
  if (name === "branch") return has(/^(-u|--set-upstream-to|--unset-upstream|-t|--track|-m|-M|--move|-c|-C|--copy)$/);
  return (name === "checkout" || name === "switch") && has(/^(-t|--track)$/);
}

/** Adds the repository that a sub-command reaches: one in a directory runs what its own settings name. */
function addSource({ word, at }: Operand, effects: Effects): void {
  const { value } = word;
  if (/^(\.{0,2}\/|\.{1,2}$|~)/.test(value) || /^file:/i.test(value)) {
    effects.dangers.push({ at, why: `${value} is a repository in a directory` });
    addObjects("history", effects);
  } else effects.uses.push({ path: value, glob: word.glob, as: "look", within: { as: "source" } });
}

/** Checks if a setting is only shown: queried, or named without a value. */
function readsConfig(words: readonly Word[]): boolean {
  const [first, second] = words.filter(({ value }) => !value.startsWith("-"));
  if (words.some(({ value }) => value.startsWith("-") && !harmlessQuery.test(value))) return false;
  if (words.some(({ value }) => /^(--get|--get-all|--get-regexp|-l|--list)$/.test(value))) return true;
  return /^(get|list)$/.test(first?.value ?? "") || (second === undefined && /^\w[\w-]*\./.test(first?.value ?? ""));
}

const harmlessQuery =
  /^(--get|--get-all|--get-regexp|-l|--list|--all|--regexp|--global|--local|--system|--worktree|--show-origin|--show-scope|--name-only|--null|-z|--bool|--int|--path|--type=[\w-]+)$/;

/** Merges tables of options. */
function joined(...tables: readonly OptionTable[]): OptionTable {
  const all: OptionTable = {};
  for (const means of ["flag", "maybe", "text", "data", "look", "read", "write", "run"] as const) {
    const names = tables.flatMap((table) => table[means] ?? []).join(" ");
    if (names !== "") all[means] = names;
  }
  return all;
}
