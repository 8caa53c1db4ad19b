import { RiskKind } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { risksOfCommands } from "../risk.ts";
import { programOf } from "./behaviour.ts";
import { type Readings, readCommands } from "./command.ts";
import { interpreter } from "./interpreters.ts";
import { programs } from "./programs.ts";
import { isRunner, isWrapper } from "./wrappers.ts";

/** The beginning of a command that a grant may cover, with the risks and options of the command; see ArgvPrefix. */
export interface CommandPrefix {
  words: string[];
  riskKinds: RiskKind[];
  options: string[];
}

/** Checks if a grant for the beginning of one command covers another: it would be offered for the same words, without a further risk or option. */
export function coversCommand(
  granted: Readonly<Pick<CommandPrefix, "words" | "options">> & { riskKinds: readonly number[] },
  text: string,
  readings?: Readings,
): boolean {
  const own = prefixOf(text, readings);
  if (own?.words.length !== granted.words.length) return false;
  const options = new Set(granted.options.map(nameOf));
  return (
    own.words.every((word, i) => word === granted.words[i]) &&
    own.riskKinds.every((kind) => granted.riskKinds.includes(kind)) &&
    own.options.every((option) => options.has(nameOf(option)))
  );
}

/**
 * Returns the first words of a command for an offer, as many as name its effect, with its risks and options. Undefined if no
 * words of it name the effect: it has effects beyond them, or its operands name what it changes, runs or reaches.
 */
export function prefixOf(text: string, readings?: Readings): CommandPrefix | undefined {
  const [command, ...others] = readings?.get(text)?.commands ?? readCommands(text);
  if (!command || others.length > 0 || command.opaque !== undefined || command.redirected) return undefined;
  if (command.dangers.some(({ mayBegin, isNamed }) => !mayBegin && !isNamed)) return undefined;
  if (command.inner.length > 0 || command.scripts.length > 0) return undefined;
  if (command.words.some(({ glob, status }) => glob || status)) return undefined;
  const words = command.words.map(({ value }) => value);
  const name = programOf(command.words);
  if (isWrapper(name) || isRunner(words) || interpreter(name) !== undefined || isWide(name)) return undefined;
  const count = [3, 2, 1]
    .map((count) => arity.get(words.slice(0, count).join(" ")))
    .find((count) => count !== undefined);
  if (count === undefined || words.length < count) return undefined;
  const riskKinds = risksOfCommands([command]).map(({ kind }) => kind);
  if (riskKinds.some((kind) => namedByOperands.has(kind))) return undefined;
  const first = words.slice(0, count);
  // An option before the sub-command does not name the effect.
  if (first.some(isOption)) return undefined;
  return { words: first, riskKinds, options: [...new Set(words.slice(count).filter(isOption))] };
}

/** Risks for which the operands say which secret, code or file it is. */
const namedByOperands: ReadonlySet<RiskKind> = new Set([
  RiskKind.CREDENTIALS,
  RiskKind.DOWNLOADED_CODE,
  RiskKind.DELETE,
]);

function isOption(word: string): boolean {
  return /^[-+]./.test(word) && word !== "--";
}

/** Returns the name under which options are compared: a number is the value of the same option. */
function nameOf(option: string): string {
  return /^-\d+$/.test(option) ? "-1" : option;
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

/**
 * The number of words that name the effect of a command, by its first words. Programs without an entry have no offer: one
 * word would cover all that they do. Sub-commands with sub-commands have three words, and so have those of which the first
 * operand names another repository.
 */
const arity: ReadonlyMap<string, number> = new Map(
  Object.entries({
    1: "cat,cd,echo,grep,ls,mkdir,ps,pwd,sleep,tail,touch,which",
    2: "bazel,brew,bun,bundle,cargo,cdk,cmake,composer,consul,crictl,docker,dotnet,firebase,flyctl,git,go,helm,heroku,hugo,ip,kind,kubectl,kustomize,mc,minikube,mongosh,mysql,ng,npm,nvm,nx,openssl,pip,pipenv,pnpm,podman,poetry,psql,pulumi,pyenv,rbenv,redis-cli,rustup,serverless,skaffold,sls,sst,swift,systemctl,terraform,ufw,uv,vault,vercel,volta,yarn",
    3: "aws,az,doctl,eksctl,gcloud,gh,sfdx,wp,brew services,bun pm,bun run,bundle config,cargo run,composer config,composer run,composer run-script,consul acl,consul kv,deno task,docker builder,docker buildx,docker compose,docker config,docker container,docker context,docker image,docker manifest,docker network,docker node,docker plugin,docker secret,docker service,docker stack,docker swarm,docker system,docker trust,docker volume,dotnet ef,dotnet nuget,dotnet sln,dotnet tool,dotnet workload,firebase functions,flyctl apps,flyctl machine,flyctl secrets,flyctl volumes,git bisect,git bundle,git config,git fetch,git lfs,git notes,git pull,git push,git reflog,git remote,git sparse-checkout,git stash,git submodule,git worktree,go env,go mod,go work,helm plugin,helm repo,ip addr,ip address,ip link,ip netns,ip route,kind create,kind delete,kubectl auth,kubectl certificate,kubectl config,kubectl create,kubectl kustomize,kubectl rollout,kubectl set,mc admin,minikube addons,minikube config,npm access,npm cache,npm config,npm init,npm org,npm owner,npm pkg,npm profile,npm run,npm run-script,npm team,npm version,nx run,openssl req,openssl x509,pip cache,pip config,pnpm config,pnpm run,pnpm store,podman compose,podman container,podman image,podman machine,podman network,podman pod,podman secret,podman system,podman volume,poetry cache,poetry config,poetry env,poetry self,poetry source,pulumi config,pulumi plugin,pulumi stack,pulumi state,rustup component,rustup default,rustup override,rustup target,rustup toolchain,swift package,swift run,terraform state,terraform workspace,uv cache,uv pip,uv python,uv tool,vault auth,vault kv,vault secrets,vault token,vercel domains,vercel env,yarn cache,yarn config,yarn run,yarn workspace",
  }).flatMap(([count, names]) => names.split(",").map((name) => [name, Number(count)] as const)),
);
