import type { Command, Option } from "commander";

/** Writes the completion script of each shell. The scripts are static: a Tab starts no program and evaluates nothing typed. */
export const completionScripts = {
  bash: bashScript,
  zsh: (program: Command) => `autoload -U +X bashcompinit && bashcompinit\n${bashScript(program)}`,
  fish: fishScript,
};

/** A command as a shell meets it, with the words that lead to it. */
interface Place {
  path: readonly string[];
  command: Command;
}

function placesOf(command: Command, path: readonly string[] = []): Place[] {
  return [{ path, command }, ...command.commands.flatMap((child) => placesOf(child, [...path, child.name()]))];
}

function optionsAt({ path, command }: Place, program: Command): Option[] {
  const own = command.createHelp().visibleOptions(command);
  return path.length === 0 ? own : [...own, ...program.options];
}

function bashScript(program: Command): string {
  const name = program.name();
  const places = placesOf(program);
  const options = places.flatMap((place) => optionsAt(place, program).filter(takesValue));
  const flagsOf = (some: readonly Option[]) => [...new Set(some.flatMap(spellings))].join("|");
  const choices = new Map(options.filter(({ argChoices }) => argChoices).map((option) => [option.long, option]));
  return `_${name}() {
  local IFS=$'\\n' cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD-1]} place= word words=
  for word in "\${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do
    case "$place/$word" in
      ${places.flatMap(({ path }) => (path.length > 0 ? [`/${path.join("/")}`] : [])).join("|")}) place="$place/$word" ;;
    esac
  done
  COMPREPLY=()
  case "$prev" in
${[...choices.values()].map((option) => `    ${flagsOf([option])}) COMPREPLY=($(compgen -W $'${option.argChoices?.join("\\n")}' -- "$cur")); return ;;`).join("\n")}
    ${flagsOf(options.filter(isFile))}) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    ${flagsOf(options.filter((option) => !isFile(option) && !option.argChoices))}) return ;;
  esac
  case "$place" in
${places.map((place) => `    ${bashPlace(place)}) words=$'${wordsAt(place, program).join("\\n")}' ;;`).join("\n")}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case "$place" in
    ${places
      .filter(({ command }) => takesFile(command))
      .map(bashPlace)
      .join("|")}) COMPREPLY+=($(compgen -f -- "$cur")) ;;
  esac
}
complete -F _${name} ${name}
`;
}

const bashPlace = ({ path }: Place) => `"${path.map((word) => `/${word}`).join("")}"`;

function wordsAt(place: Place, program: Command): string[] {
  const commands = place.command.commands.map((child) => child.name());
  return [...commands, ...choicesAt(place), ...optionsAt(place, program).flatMap(({ long }) => long ?? [])];
}

function choicesAt({ command }: Place): string[] {
  return command.registeredArguments.flatMap(({ argChoices }) => argChoices ?? []);
}

function fishScript(program: Command): string {
  const name = program.name();
  const commands = placesOf(program).flatMap((place) => {
    const when = fishCondition(place);
    return [
      ...place.command.commands.map(
        (child) => `complete -c ${name} -n '${when}' -f -a ${child.name()} -d ${quoted(summaryOf(child))}`,
      ),
      ...choicesAt(place).map((choice) => `complete -c ${name} -n '${when}' -f -a ${choice}`),
      ...(takesFile(place.command) ? [`complete -c ${name} -n '${when}' -F`] : []),
      ...place.command
        .createHelp()
        .visibleOptions(place.command)
        .map((option) => `complete -c ${name}${place.path.length === 0 ? "" : ` -n '${when}'`} ${fishOption(option)}`),
    ];
  });
  return `complete -c ${name} -f\n${commands.join("\n")}\n`;
}

function fishCondition({ path, command }: Place): string {
  if (path.length === 0) return "__fish_use_subcommand";
  const deeper = command.commands.map((child) => child.name());
  const here = `__fish_seen_subcommand_from ${path.at(-1)}`;
  return deeper.length === 0 ? here : `${here}; and not __fish_seen_subcommand_from ${deeper.join(" ")}`;
}

function fishOption(option: Option): string {
  const words = [option.long && `-l ${option.long.slice(2)}`, option.short && `-s ${option.short.slice(1)}`];
  const value = isFile(option) ? "-rF" : takesValue(option) ? "-x" : "";
  const choices = option.argChoices ? `-a ${quoted(option.argChoices.join(" "))}` : "";
  return [...words, value, choices, `-d ${quoted(option.description)}`].filter(Boolean).join(" ");
}

const takesValue = ({ required, optional }: Option) => required || optional;
const spellings = ({ long, short }: Option) => [long, short].filter((flag) => flag !== undefined);
const isFile = ({ flags }: Option) => /<(file|dir)>/.test(flags);
const takesFile = (command: Command) =>
  command.registeredArguments.some((argument) => /^(file|dir)$/.test(argument.name()));
const summaryOf = (command: Command) => command.summary() || command.description();
const quoted = (text: string) => `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
