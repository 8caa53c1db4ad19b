import { programOf } from "./behaviour.ts";
import { type Readings, readCommands } from "./command.ts";
import { interpreter } from "./interpreters.ts";
import { programs } from "./programs.ts";
import { isWrapper } from "./wrappers.ts";

/** Checks if a grant for these first words covers a command: it begins with them, and has no effect beyond its words. */
export function beginsWith(text: string, prefix: readonly string[], readings?: Readings): boolean {
  const coverable = coverableWords(text, readings);
  if (!coverable || prefix.length < coverable.least) return false;
  return prefix.every((word, i) => word === coverable.words[i]);
}

/** Returns the first words of a command for an offer: as many as name its effect, or all. Undefined if the words do not name it. */
export function prefixOf(text: string, readings?: Readings): string[] | undefined {
  const coverable = coverableWords(text, readings);
  if (!coverable) return undefined;
  const { words, least } = coverable;
  // One word would name any file to change, or any other machine.
  if (isWide(words[0] ?? "")) return undefined;
  const known = [3, 2, 1].map((count) => arityOf(words.slice(0, count))).find((count) => count !== undefined);
  const prefix = words.slice(0, known ?? 1);
  // An option before the sub-command does not name the effect.
  return prefix.length < least || prefix[1]?.startsWith("-") ? undefined : prefix;
}

/** Checks if a program changes, replaces or removes what its operands name, ends processes or reaches other machines. */
function isWide(name: string): boolean {
  if (name === "mkdir" || name === "touch") return false;
  return more.has(name) || wide.has(programs.get(name)?.operands ?? "text");
}

const wide: ReadonlySet<string> = new Set(
  "change rewrite write copy move mode filter archive address remote".split(" "),
);
const more = new Set(
  "kill killall pkill dd sftp ftp nc ncat netcat telnet socat mosh rclone at batch crontab".split(" "),
);

/** Returns the words of a command that a prefix grant may cover, and how many it has to name at least. Undefined if none may cover it. */
function coverableWords(text: string, readings?: Readings): { words: string[]; least: number } | undefined {
  const [command, ...others] = readings?.get(text)?.commands ?? readCommands(text);
  if (!command || others.length > 0 || command.opaque !== undefined || command.redirected) return undefined;
  const dangers = command.dangers.filter(({ mayBegin }) => !mayBegin);
  if (dangers.some(({ isNamed }) => !isNamed)) return undefined;
  if (command.inner.length > 0 || command.scripts.length > 0) return undefined;
  if (command.words.some(({ glob, status }) => glob || status)) return undefined;
  const name = programOf(command.words);
  if (isWrapper(name) || interpreter(name) !== undefined) return undefined;
  const least = Math.max(1, ...dangers.map(({ at }) => at + 1));
  return { words: command.words.map(({ value }) => value), least };
}

function arityOf(words: readonly string[]): number | undefined {
  return arity.get(words.join(" "));
}

/** The number of words that name the effect of a command, by its first words: opencode's table without wrappers and interpreters. */
const arity: ReadonlyMap<string, number> = new Map(
  Object.entries({
    1: "cat,cd,echo,grep,ls,mkdir,ps,pwd,sleep,tail,touch,which",
    2: "bazel,brew,bun,cargo,cdk,cf,cmake,composer,consul,crictl,deno,docker,eksctl,firebase,flyctl,git,go,gradle,helm,heroku,hugo,ip,kind,kubectl,kustomize,make,mc,minikube,mongosh,mysql,mvn,ng,npm,nvm,nx,openssl,pip,pipenv,pnpm,poetry,podman,psql,pulumi,pyenv,rake,rbenv,redis-cli,rustup,serverless,skaffold,sls,sst,swift,systemctl,terraform,tmux,turbo,ufw,vault,vercel,volta,wp,yarn",
    3: "aws,az,doctl,gcloud,gh,sfdx,bun run,bun x,cargo add,cargo run,consul kv,deno task,docker builder,docker compose,docker container,docker image,docker network,docker volume,eksctl create,git config,git remote,git stash,ip addr,ip link,ip netns,ip route,kind create,kubectl kustomize,kubectl rollout,mc admin,npm exec,npm init,npm run,npm view,openssl req,openssl x509,pnpm dlx,pnpm exec,pnpm run,podman container,podman image,pulumi stack,terraform workspace,vault auth,vault kv,yarn dlx,yarn run",
  }).flatMap(([count, names]) => names.split(",").map((name) => [name, Number(count)] as const)),
);
