import { programOf } from "./behaviour.ts";
import { readCommands } from "./command.ts";
import { interpreter } from "./interpreters.ts";
import { isWrapper } from "./wrappers.ts";

/** The words of a command that a grant for its first words may cover; nothing if there is anything else about it. */
export function coverableWords(text: string): string[] | undefined {
  const [command, ...others] = readCommands(text);
  if (!command || others.length > 0 || command.opaque !== undefined || command.redirected) return undefined;
  if (command.dangers.some(({ mayBegin }) => !mayBegin)) return undefined;
  if (command.inner.length > 0 || command.scripts.length > 0) return undefined;
  if (command.words.some(({ glob, status }) => glob || status)) return undefined;
  const name = programOf(command.words);
  if (isWrapper(name) || interpreter(name) !== undefined) return undefined;
  return command.words.map(({ value }) => value);
}

/** The first words of a command that an offer keeps, as many as tell what it does; nothing if only all of it tells that. */
export function prefixOf(text: string): string[] | undefined {
  const words = coverableWords(text);
  if (!words) return undefined;
  const kept = [3, 2, 1].find((count) => longest(words.slice(0, count)) !== undefined);
  const count = kept === undefined ? 1 : (longest(words.slice(0, kept)) ?? 1);
  const prefix = words.slice(0, count);
  // An option among them says how, not what.
  return prefix.length === count && prefix.every((word) => !word.startsWith("-")) ? prefix : undefined;
}

function longest(words: readonly string[]): number | undefined {
  return arity.get(words.join(" "));
}

/** How many words tell what a command does, by its first ones. */
const arity: ReadonlyMap<string, number> = new Map(
  Object.entries({
    1: "cat,cd,chmod,chown,cp,echo,grep,kill,killall,ln,ls,mkdir,mv,ps,pwd,rm,rmdir,sleep,tail,touch,which",
    2: "bazel,brew,bun,cargo,cdk,cf,cmake,composer,consul,crictl,deno,docker,eksctl,firebase,flyctl,git,go,gradle,helm,heroku,hugo,ip,kind,kubectl,kustomize,make,mc,minikube,mongosh,mysql,mvn,ng,npm,nvm,nx,openssl,pip,pipenv,pnpm,poetry,podman,psql,pulumi,pyenv,rake,rbenv,redis-cli,rustup,serverless,skaffold,sls,sst,swift,systemctl,terraform,tmux,turbo,ufw,vault,vercel,volta,wp,yarn",
    3: "aws,az,doctl,gcloud,gh,sfdx,bun run,bun x,cargo add,cargo run,consul kv,deno task,docker builder,docker compose,docker container,docker image,docker network,docker volume,eksctl create,git config,git remote,git stash,ip addr,ip link,ip netns,ip route,kind create,kubectl kustomize,kubectl rollout,mc admin,npm exec,npm init,npm run,npm view,openssl req,openssl x509,pnpm dlx,pnpm exec,pnpm run,podman container,podman image,pulumi stack,terraform workspace,vault auth,vault kv,yarn dlx,yarn run",
  }).flatMap(([count, names]) => names.split(",").map((name) => [name, Number(count)] as const)),
);
