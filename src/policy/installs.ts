import { programName } from "./risky-programs.ts";

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
export function installedNames(words: readonly string[], registries: readonly string[]): string[] | undefined {
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
export const isManifest = (path: string) =>
  /(^|\/)(package(-lock)?\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|yarn\.lock|requirements[\w.-]*\.txt|pyproject\.toml|setup\.(py|cfg)|Pipfile(\.lock)?|poetry\.lock|uv\.lock|Cargo\.(toml|lock)|go\.(mod|sum)|Gemfile(\.lock)?|composer\.(json|lock)|environment\.ya?ml)$/.test(
    path,
  );
