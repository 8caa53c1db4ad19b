import { RiskKind } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { risksOfCommands } from "../risk.ts";
import { optionsOf } from "./behaviour.ts";
import { type Command, type Readings, readCommands } from "./command.ts";
import type { Word } from "./line.ts";

/** The beginning of a command that a grant may cover, with the risks and further words of the command; see ArgvPrefix. */
export interface CommandPrefix {
  words: string[];
  riskKinds: RiskKind[];
  options: string[];
}

/** Checks if a grant for the beginning of one command covers another: it would be offered for the same words and options, without a further risk. */
export function coversCommand(
  granted: Readonly<Pick<CommandPrefix, "words" | "options">> & { riskKinds: readonly number[] },
  text: string,
  readings?: Readings,
): boolean {
  const own = prefixOf(text, readings);
  if (own?.words.length !== granted.words.length) return false;
  const options = new Set(granted.options.map(nameOf));
  const ownOptions = new Set(own.options.map(nameOf));
  return (
    own.words.every((word, i) => word === granted.words[i]) &&
    own.riskKinds.every((kind) => granted.riskKinds.includes(kind)) &&
    options.symmetricDifference(ownOptions).size === 0
  );
}

/**
 * Returns the first words of a command for an offer, with its risks and the further words that another command must have
 * too. Undefined unless these words are known to do the same with any operands.
 */
export function prefixOf(text: string, readings?: Readings): CommandPrefix | undefined {
  const [command, ...others] = readings?.get(text)?.commands ?? readCommands(text);
  if (!command || others.length > 0 || command.opaque !== undefined || command.redirected) return undefined;
  if (command.dangers.some(({ mayBegin, isNamed }) => !mayBegin && !isNamed)) return undefined;
  if (command.words.some(({ glob, status }) => glob || status)) return undefined;
  const count = wordCount(command.words.map(({ value }) => value));
  if (count === undefined) return undefined;
  const riskKinds = risksOfCommands([command]).map(({ kind }) => kind);
  if (riskKinds.some((kind) => kind !== RiskKind.NETWORK)) return undefined;
  const words = command.words.slice(0, count).map(({ value }) => value);
  const further = [...assignmentsOf(command), ...optionsBehind(command.words, count)];
  if (riskKinds.length > 0) further.push(...command.words.slice(count).flatMap(({ value }) => namesPlace(value)));
  return { words, riskKinds, options: [...new Set(further)] };
}

/** Returns the options behind the first words, each with the word behind it, unless that is known not to be its value or any value is the same. */
function optionsBehind(words: readonly Word[], count: number): string[] {
  const known = optionsOf(words);
  return words.slice(count).flatMap((word, i) => {
    if (!isOption(word.value)) return [];
    const next = words[count + i + 1];
    const own = known?.filter(({ at }) => at === count + i) ?? [];
    const takesNext = own.length === 0 || own.some(({ means, value }) => means === undefined || value === next);
    if (next === undefined || isOption(next.value) || !takesNext) return word.value;
    const isMessage = words[1]?.value === "commit" && own.some(({ name }) => /^(-m|--message)$/.test(name));
    return isMessage ? word.value : `${word.value} ${next.value}`;
  });
}

/** Returns a word of a command that uses the network unless it is a plain name: other words can name another machine or repository. */
function namesPlace(word: string): string[] {
  return isOption(word) || /^[\w.-]+$/.test(word) ? [] : [word];
}

/** Returns the variables that a command sets, where they change more than how it prints. */
function assignmentsOf({ text, bare }: Command): string[] {
  const set = text.slice(0, text.length - bare.length).trim();
  return /\bNODE_ENV=/.test(set) ? [set] : [];
}

function isOption(word: string): boolean {
  return /^[-+]./.test(word) && word !== "--";
}

/** Returns the name under which options are compared: another count of lines or results is the same option. */
function nameOf(option: string): string {
  return option.replace(/^-\d+$/, "-1").replace(/^(-[nABCL]|--(?:limit|lines|max-count|tail)) \d+$/, "$1 1");
}

/** Returns how many first words of a command have an entry; a `*` of an entry is any word that is no option. */
function wordCount(words: readonly string[]): number | undefined {
  const [name = "", second = "", third = ""] = words;
  const known = beginnings.get(name);
  if (known === undefined || words.slice(0, 3).join("").includes(" ")) return undefined;
  if (known.has("")) return 1;
  if (known.has(second)) return 2;
  const isAny = known.has(`${second} *`) && third !== "" && !isOption(third);
  return isAny || known.has(`${second} ${third}`) ? 3 : undefined;
}

/**
 * The beginnings of commands that do the same with any operands: they print, test or build what belongs to the project, or record
 * it. Others have no offer: their operands name what they change, run or send, or the target on which they do.
 */
const beginnings: ReadonlyMap<string, ReadonlySet<string>> = new Map(
  Object.entries({
    ...Object.fromEntries(
      "cat,cd,echo,grep,head,ls,mkdir,pwd,sleep,tail,touch,wc,which".split(",").map((name) => [name, ""]),
    ),
    brew: "list,services list",
    bun: "pm ls,run lint,run test,run typecheck,test",
    bundle: "check,info,list,outdated,show",
    cargo: "bench,build,check,clippy,doc,fmt,metadata,test,tree",
    composer: "licenses,outdated,show,validate",
    docker:
      "compose images,compose logs,compose ls,compose ps,compose top,container ls,diff,events,history,image ls,images,info,logs,network ls,port,ps,stats,system df,top,version,volume ls",
    gh: "issue list,issue status,issue view,pr checks,pr diff,pr list,pr status,pr view,release list,release view,repo view,run list,run view,workflow list,workflow view",
    git: "add,blame,branch,cat-file,clean,commit,count-objects,describe,diff,diff-index,diff-tree,fetch *,for-each-ref,grep,log,ls-files,ls-remote *,ls-tree,merge-base,remote get-url,restore,rev-list,rev-parse,shortlog,show,show-ref,stash list,stash show,status,tag,version,worktree list",
    go: "build,doc,fmt,list,mod graph,mod tidy,mod verify,mod why,test,version,vet",
    helm: "history,lint,list,ls,status",
    kubectl:
      "api-resources,api-versions,auth can-i,config current-context,config get-contexts,describe *,explain,get *,logs,rollout history,rollout status,top,version",
    npm: "bin,explain,info,la,list,ll,ls,outdated,ping,prefix,root,run lint,run test,run typecheck,show,t,test,tst,view,why",
    nvm: "current,list,ls",
    pip: "check,freeze,list,show",
    pip3: "check,freeze,list,show",
    pnpm: "list,ls,outdated,run lint,run test,run typecheck,t,test,why",
    poetry: "check,env info,env list,lock,show",
    pulumi: "preview,stack ls,version",
    swift: "build,test",
    terraform: "fmt,graph,plan,providers schema,state list,validate,version,workspace list,workspace show",
    uv: "lock,pip check,pip freeze,pip list,pip show,python list,tree,version",
    yarn: "info,list,outdated,run lint,run test,run typecheck,test,why",
  }).map(([name, entries]) => [name, new Set(entries.split(","))]),
);
