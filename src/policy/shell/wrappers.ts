import { type Effects, type Inner, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";
import { dangersOf, each, type OptionTable, optionReader } from "./options.ts";
import { isHarmlessVariable } from "./programs.ts";

/** A program that runs the words after its own, in the directory of an option to `look` at. */
interface Wrapper extends OptionTable {
  /** The number of operands before the program. */
  skip?: number;
  /** Operands `NAME=value` set variables. */
  variables?: true;
  /** The reason why not even an allowed inner command makes it harmless. */
  danger?: string;
}

const fromInput = "it adds words from its input, which no approver has seen";
const elsewhere = "it runs the command in other surroundings";

/** Wrappers by name. All are strict, and end their options at the first operand. */
const wrappers: ReadonlyMap<string, Wrapper> = new Map(
  Object.entries<Wrapper>({
    ...each<Wrapper>(
      "builtin busybox chpst dbus-run-session eatmydata fakeroot linux32 linux64 nohup numactl prlimit setpriv toybox unbuffer valgrind",
      {},
    ),
    ...each<Wrapper>("firejail nsenter systemd-run torsocks unshare", { danger: elsewhere }),
    chroot: { skip: 1, danger: elsewhere },
    chrt: { skip: 1, flag: "-b -f -i -o -r" },
    command: { flag: "-p" },
    doas: { text: "-u", flag: "-n" },
    env: {
      variables: true,
      flag: "-i --ignore-environment -0 --null -v --debug",
      text: "-u --unset",
      look: "-C --chdir",
      line: "-S --split-string",
    },
    exec: { flag: "-c -l", text: "-a" },
    caffeinate: { flag: "-d -i -m -s -u", text: "-t -w" },
    cpulimit: { text: "-l -p -e -P", flag: "-z -i -v" },
    entr: { flag: "-c -d -n -p -r -s -z -a", danger: fromInput },
    flock: {
      skip: 1,
      flag: "-n -s -x -e -o --nonblock --shared --exclusive",
      text: "-w -E --timeout",
      line: "-c --command",
    },
    ionice: { text: "-c -n --class --classdata", flag: "-t --ignore" },
    ltrace: { flag: "-f -c", text: "-e -s" },
    nice: { text: "-n --adjustment" },
    parallel: { danger: fromInput },
    pkexec: { text: "--user", danger: elsewhere },
    ...each<Wrapper>("proxychains proxychains4", { flag: "-q", text: "-f", danger: elsewhere }),
    runuser: { text: "-u", danger: elsewhere },
    ...each<Wrapper>("faketime setarch", { skip: 1 }),
    setsid: { flag: "-c -f -w --ctty --fork --wait" },
    stdbuf: { text: "-i -o -e --input --output --error" },
    strace: { flag: "-f -c -t -tt -T -q -y", text: "-e -s -p", write: "-o --output" },
    sudo: {
      variables: true,
      flag: "-n -E -H -b -k -S --non-interactive",
      text: "-u -g --user --group -p --prompt",
      look: "-D --chdir",
    },
    taskset: { skip: 1, flag: "-c --cpu-list" },
    time: { flag: "-p -v -a -q --verbose --portability --append --quiet", text: "-f --format", write: "-o --output" },
    timeout: {
      skip: 1,
      flag: "-v --verbose --foreground --preserve-status",
      text: "-s --signal -k --kill-after",
    },
    watch: { text: "-n --interval", flag: "-d -t -g -c -e -b -p", danger: "it gives the command to a shell" },
    xargs: {
      flag: "-0 -r -t -p -x --null --no-run-if-empty --verbose --exit",
      text: "-I -n -P -L -d -s -E --max-args --max-procs --delimiter --max-chars",
      maybe: "--max-lines -i --replace -e -l --eof",
      read: "-a --arg-file",
      danger: fromInput,
    },
    "xvfb-run": { flag: "-a --auto-servernum", text: "-n -s --server-num --server-args" },
  }).map(([name, wrapper]) => [name, wrapper]),
);
const readers = new Map([...wrappers].map(([name, wrapper]) => [name, optionReader(wrapper)]));

/** Checks if a program runs the words after it. */
export function isWrapper(name: string): boolean {
  return wrappers.has(name) || isLoader(name);
}

/**
 * Checks if a command runs a program that its operands name, with what a package manager, a container or another machine
 * gives it. Unlike a wrapper it is judged by its own words, so that a rule for `uv run pytest` is enough.
 */
export function isRunner(words: readonly string[]): boolean {
  return [1, 2, 3].some((count) => runners.has(words.slice(0, count).join(" ")));
}

const runners: ReadonlySet<string> = new Set(
  "asdf exec,aws ssm,aws-vault exec,az vm,bun x,bundle exec,bunx,composer exec,conda run,crictl exec,dagger run,deno run,deno x,devbox run,devcontainer exec,direnv exec,docker compose exec,docker compose run,docker container exec,docker container run,docker exec,docker run,docker-compose exec,docker-compose run,doppler run,dotenv,dotnet exec,dotnet run,dotnet watch,fly ssh,flyctl ssh,gcloud compute ssh,gem exec,gh codespace,gh extension,go run,go tool,hatch run,heroku run,kubectl attach,kubectl debug,kubectl exec,kubectl run,mamba run,minikube ssh,mise exec,mise x,nix develop,nix run,nix shell,nix-shell,npm exec,npm x,npx,nvm exec,nvm run,nx exec,op run,pdm run,pipenv run,pipenv shell,pipx run,pixi run,pnpm dlx,pnpm exec,pnpx,podman compose exec,podman compose run,podman container exec,podman container run,podman exec,podman run,poetry run,poetry shell,pyenv exec,rbenv exec,rustup run,rye run,screen,sst shell,tmux,uv run,uv tool run,uvx,vagrant ssh,volta run,wp eval,wp eval-file,wp shell,yarn dlx,yarn exec".split(
    ",",
  ),
);

/** The loader of the system runs any program. */
function isLoader(name: string): boolean {
  return /^ld(-linux.*|-musl.*)?\.so(\.\d+)*$/.test(name);
}

/** Adds the effects of a wrapper: its inner command, and those beyond it. */
export function wrap(name: string, words: readonly Word[], effects: Effects): void {
  const wrapper = wrappers.get(name) ?? { danger: "it runs a file past what guards programs" };
  const { options, operands } = (readers.get(name) ?? loaderReader)(words, 1, true);
  if (name === "command" && /^-[vV]$/.test(words[1]?.value ?? "")) return;
  effects.dangers.push(...dangersOf(name, options));
  const directory = options.findLast(({ means }) => means === "look")?.value?.value;
  const run = (inner: Inner) => effects.inner.push({ ...inner, ...(directory !== undefined && { directory }) });
  for (const { name: option, means, value, at } of options) {
    if (means === "look") effects.dangers.push({ at, why: `${option} changes the directory` });
    if (value && (means === "look" || means === "read" || means === "write"))
      effects.uses.push(...usesIn(value, means));
    if (value && means === "write" && /^[|!]/.test(value.value))
      effects.dangers.push({ at, why: `${option} runs ${value.value}` });
    if (value && means === "line") run({ line: value.value, at, opaque: "a line that bash does not read" });
  }
  // `env -` is `env -i`.
  if (name === "env" && operands[0]?.word.value === "-") operands.shift();
  const own = wrapper.variables ? operands.findIndex(({ word }) => !/^\w+=/.test(word.value)) : 0;
  const assigned = own === -1 ? operands : operands.slice(0, own);
  for (const { word, at } of assigned) {
    if (!isHarmlessVariable(word.value.split("=", 1)[0] ?? ""))
      effects.dangers.push({ at, why: `it sets ${word.value}` });
  }
  const behind = operands.slice(assigned.length);
  for (const { word } of behind.slice(0, wrapper.skip ?? 0)) effects.uses.push(...usesIn(word, "look"));
  const program = behind[wrapper.skip ?? 0];
  if (program === undefined) return;
  if (wrapper.danger !== undefined) effects.dangers.push({ at: program.at, why: wrapper.danger });
  if (program.word.value.startsWith("-")) {
    // `flock FILE -c LINE`: an option after the operands.
    const rest = words.slice(program.at);
    effects.dangers.push({ at: program.at, why: `${program.word.value} is no program` });
    for (const { value } of rest)
      effects.inner.push({ line: value, at: program.at, opaque: "a line that bash does not read" });
    return;
  }
  run({ words: words.slice(program.at), at: program.at });
}

const loaderReader = optionReader({});
