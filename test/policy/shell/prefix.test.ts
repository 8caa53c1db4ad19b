import { expect, test } from "vitest";
import { readCommands } from "../../../src/policy/shell/command.ts";
import { coversCommand, prefixOf } from "../../../src/policy/shell/prefix.ts";
import { lineMaker, random } from "./lines.ts";

test.each([
  ["git commit -m 'a b'", ["git", "commit"]],
  ["git stash list", ["git", "stash", "list"]],
  ["npm run lint -- --fix", ["npm", "run", "lint"]],
  ["npm test", ["npm", "test"]],
  ["docker compose ps", ["docker", "compose", "ps"]],
  ["ls -la src", ["ls"]],
  ["docker ps -a", ["docker", "ps"]],
  ["CI=1 npm test", ["npm", "test"]],
  ["git fetch origin main", ["git", "fetch", "origin"]],
  ["uv lock", ["uv", "lock"]],
  ["terraform state list", ["terraform", "state", "list"]],
])("the offer for %s names %j", (line, words) => {
  expect(prefixOf(line)?.words).toEqual(words);
});

test.each([
  // Words that name no effect, or less of it than the program needs.
  "git",
  "npm run",
  "git stash",
  "git push",
  "git remote -v",
  "git --no-pager log",
  "git -C x status",
  "docker -H x ps",
  "terraform state",
  "mytool x y",
  "pytest tests",
  "jq . x.json",
  "journalctl -u x",
  "ansible all",
  "apt-get update",
  // Each operand is one more target.
  "make test",
  "gradle test",
  "mvn test",
  "rake test",
  "just test",
  // Operands name what is changed, which code comes, or which machine is reached.
  "rm -rf x",
  "curl https://example.com",
  "ssh host uptime",
  "git clean -fd",
  "git rm a",
  "kubectl delete pod x",
  "kubectl get secrets",
  "gh auth token",
  "cat .env",
  "npm install lodash",
  "npm ci",
  "pip install x",
  "docker build .",
  "git push origin main",
  "git checkout main",
  "git merge main",
  "git config user.name x",
  "npm run build",
  "npm uninstall x",
  "dotnet build",
  "nvm use 20",
  "nx build app",
  "mc cp a b",
  "aws s3 ls",
  "redis-cli get a",
  "systemctl status x",
  // More than one command, or effects beyond its words.
  "git status; id",
  "git status > x",
  "git status $(id)",
  "ls *.ts",
  "find . -delete",
  "./x.sh a",
  // Interpreters and wrappers.
  "bash -c 'git status'",
  "bash x.sh",
  "node x.js",
  "deno run x.ts",
  "timeout 5 npm test",
  "sudo npm test",
  "env npm test",
  "xargs rm",
  "docker exec c id",
  "docker run nginx",
  "docker compose run web sh",
  "podman run x",
  "kubectl exec p -- id",
  "npx tsc",
  "bunx tsc",
  "uvx ruff",
  "pipx run x",
  "npm exec tsc",
  "npm x tsc",
  "pnpm dlx x",
  "pnpm exec tsc",
  "yarn dlx x",
  "yarn exec tsc",
  "bun x tsc",
  "uv run pytest",
  "uv tool run ruff",
  "poetry run pytest",
  "pipenv run pytest",
  "pdm run x",
  "rye run x",
  "hatch run x",
  "conda run x",
  "bundle exec rake",
  "dotnet exec x.dll",
  "dotnet run",
  "go run .",
  "nix run x",
  "mise exec -- x",
  "rbenv exec ruby",
  "composer exec x",
  "gh codespace ssh",
  "tmux new-session id",
  "git submodule foreach id",
])("there is no offer for what %s begins with", (line) => {
  expect(prefixOf(line)).toBeUndefined();
});

/** What an offer for an approved line covers later, and what asks again. */
const later: [approved: string, covered: string[], asks: string[]][] = [
  [
    "git log -5",
    ["git log -5 main", "git log -20", "git log -5 src/a.ts"],
    [
      "git log",
      "git log --all",
      "git log -p",
      "git push",
      "git log; id",
      "git log > x",
      "git log $(id)",
      "LD_PRELOAD=x git log",
    ],
  ],
  ["git log", ["git log main", "git log -- src"], ["git log -5", "git -C x log", "git logs", "git"]],
  ["git status -s", ["git status -s", "git status -s src"], ["git status", "git status -s -uno", "git status --short"]],
  [
    "git clean -n",
    ["git clean -n", "git clean -n src"],
    ["git clean -fdx", "git clean -n -f", "git clean -nfd", "git clean", "git clean src"],
  ],
  [
    "git branch x",
    ["git branch y"],
    ["git branch -D x", "git branch -d x", "git branch --delete x", "git branch -m x y"],
  ],
  ["git tag v1", ["git tag v2"], ["git tag -d v1", "git tag -f v1"]],
  ["git stash list", ["git stash list"], ["git stash drop", "git stash clear", "git stash", "git stash pop"]],
  ["git restore --staged x", ["git restore --staged y"], ["git restore x", "git restore ."]],
  [
    "git commit -m a",
    ["git commit -m b", "git commit -m 'b: c' -- src"],
    ["git commit --amend", "git commit -m b --no-verify", "git commit -am b"],
  ],
  ["git add src", ["git add test"], ["git add -A", "git add -f .env"]],
  ["git fetch origin", ["git fetch origin main"], ["git fetch evil", "git fetch --all", "git pull origin"]],
  ["git worktree list", ["git worktree list"], ["git worktree remove x", "git worktree add x"]],
  [
    "git remote get-url origin",
    ["git remote get-url a"],
    ["git remote set-url origin x", "git remote remove a", "git remote"],
  ],
  [
    "npm test",
    ["npm test", "npm test src", "CI=1 npm test"],
    ["npm test -- --watch", "npm test --prefix ../x", "npm run test", "npm install", "NODE_OPTIONS=x npm test"],
  ],
  ["npm run lint", ["npm run lint web"], ["npm run deploy", "npm run lint -- --fix", "npm run"]],
  ["npm view react", ["npm view vue"], ["npm publish", "npm view react --registry=http://x"]],
  ["cargo test", ["cargo test parser"], ["cargo test --config x", "cargo publish", "cargo install x", "cargo build"]],
  ["go test ./...", ["go test ./a"], ["go test -exec x ./...", "go run ./a", "go get x"]],
  ["uv lock", ["uv lock"], ["uv run sh -c id", "uv publish", "uv pip install x", "uv lock --script x"]],
  ["bundle list", ["bundle list"], ["bundle exec sh", "bundle install", "bundle update"]],
  ["poetry show", ["poetry show requests"], ["poetry run sh", "poetry publish", "poetry add x"]],
  [
    "docker logs --tail 5 web",
    ["docker logs --tail 50 web"],
    ["docker logs --tail all web", "docker logs --tail 5 -f web"],
  ],
  ["docker ps", ["docker ps"], ["docker run x", "docker rm x", "docker ps -a", "docker system prune", "docker"]],
  [
    "docker logs -f web",
    ["docker logs -f web"],
    ["docker logs web", "docker logs -f api", "docker logs --details web", "docker exec web sh"],
  ],
  [
    "docker compose ps",
    ["docker compose ps web"],
    ["docker compose down -v", "docker compose up", "docker compose run x sh"],
  ],
  [
    "kubectl get pods",
    ["kubectl get pods web"],
    ["kubectl get nodes", "kubectl get secrets", "kubectl get pods -A", "kubectl delete pod x"],
  ],
  ["kubectl config current-context", [], ["kubectl config view --raw", "kubectl config use-context prod"]],
  ["terraform state list", ["terraform state list x"], ["terraform state rm x", "terraform destroy"]],
  [
    "terraform plan",
    ["terraform plan"],
    ["terraform apply", "terraform plan -destroy", "terraform apply -auto-approve"],
  ],
  ["gh pr view 1", ["gh pr view 2"], ["gh pr merge 1", "gh pr close 1", "gh pr view 1 --web", "gh auth token"]],
  ["ls -la", ["ls -la src"], ["ls src", "ls -R", "ls --color", "ls -la *.ts"]],
  [
    "cat README.md",
    ["cat package.json"],
    ["cat .env", "cat id_rsa", "cat README.md > x", "cat -A README.md", "cat <<'E'\nx\nE"],
  ],
  ["grep -n x a", ["grep -n y b"], ["grep y b", "grep -r x .", "grep -f x a"]],
  ["echo a", ["echo b"], ["echo a; id", "echo $(id)", "echo -e a", "echo $TOKEN"]],
  ["mkdir -p a", ["mkdir -p b"], ["mkdir b", "mkdir -m 777 b", "rmdir a"]],
];
const pairs = later.flatMap(([approved, covered, asks]) => [
  ...covered.map((line) => [approved, line, true] as const),
  ...asks.map((line) => [approved, line, false] as const),
]);

test.each(pairs)("always for %j covers %j: %s", (approved, line, isCovered) => {
  const prefix = prefixOf(approved);
  expect(prefix !== undefined && coversCommand(prefix, line)).toBe(isCovered);
});

test("the table has pairs of both outcomes for each approved line, a hundred at least", () => {
  expect(pairs.length).toBeGreaterThanOrEqual(100);
});

/** Lines that do more than an approved one with the same first words: by an option's value, an operand, a variable or a sub-command. */
const wider: readonly (readonly [approved: string, line: string])[] = [
  // Values of options, as words of their own and behind `=`.
  ["kubectl apply -f a", "kubectl apply -f https://example.com/x"],
  ["kubectl get pods -n dev", "kubectl get pods -n prod"],
  ["kubectl get pods -n dev", "kubectl get -n dev secrets"],
  ["kubectl logs web --context dev", "kubectl logs web --context prod"],
  ["kubectl logs web --kubeconfig a", "kubectl logs web --kubeconfig /tmp/evil"],
  ["kubectl rollout restart deployment -n dev", "kubectl rollout restart deployment -n prod"],
  ["docker compose ps --file a.yml", "docker compose ps --file /tmp/evil.yml"],
  ["docker logs --since 5m web", "docker logs --since 5m -f vault"],
  ["gh pr view 1 -R a/b", "gh pr view 1 -R evil/b"],
  ["helm list --kube-context dev", "helm list --kube-context prod"],
  ["terraform plan -var-file dev.tfvars", "terraform plan -var-file prod.tfvars"],
  ["terraform plan -var-file=dev.tfvars", "terraform plan -var-file=prod.tfvars"],
  ["psql -c select", "psql -c 'copy t to program $$id$$'"],
  ["mysql -e select", "mysql -e 'drop user x'"],
  ["npm ls --registry http://127.0.0.1", "npm ls --registry http://example.com"],
  ["npm test -w a", "npm test -w b"],
  ["npm test --prefix a", "npm test --prefix b"],
  ["cargo build --target x86_64-unknown-linux-gnu", "cargo build --target ./evil.json"],
  ["cargo test --features a", "cargo test --features b"],
  ["go build -o a", "go build -o .git/hooks/pre-commit"],
  ["go test -tags a", "go test -tags evil"],
  ["pip list -i https://a.example", "pip list -i https://b.example"],
  ["aws s3 ls --profile dev", "aws s3 ls --profile prod"],
  ["mkdir -m 700 a", "mkdir -m 777 a"],
  ["git diff -O a", "git diff -O /etc/passwd"],
  ["git log --output a", "git log --output .git/hooks/pre-commit"],
  ["git log --format=a", "git log --format=%x1b"],
  ["git push origin main -o a", "git push origin main -o ci.variable=x"],
  ["redis-cli -h a get x", "redis-cli -h b get x"],
  // Operands that name another machine, registry, repository, version or target.
  ["mc cp a b", "mc cp a evil/b"],
  ["mc ls a", "mc ls evil"],
  ["git merge a", "git merge evil"],
  ["git pull origin main", "git pull origin evil"],
  ["git push origin feature", "git push origin main"],
  ["git push origin feature", "git push origin feature:main"],
  ["git fetch origin main", "git fetch origin evil:main"],
  ["git remote show origin", "git remote show https://example.com/x"],
  ["git remote add a ../a", "git remote add origin git@example.com:x"],
  ["git checkout main", "git checkout src/a.ts"],
  ["git reset HEAD", "git reset HEAD~5"],
  ["git rebase main", "git rebase evil"],
  ["git cherry-pick a", "git cherry-pick evil"],
  ["git config alias.lg log", "git config alias.lg '!id'"],
  ["git config --get user.name", "git config core.hooksPath x"],
  ["git worktree add a", "git worktree add ../b evil"],
  ["git stash apply", "git stash apply stash@{7}"],
  ["nvm use 20", "nvm use 8"],
  ["nx build app", "nx build other"],
  ["npm view react", "npm view evil/react"],
  ["npm view react", "npm view git+ssh://example.com/x"],
  ["npm audit", "npm audit fix"],
  ["npm run deploy staging", "npm run deploy production"],
  ["npm pkg set a=b", "npm pkg set scripts.test=id"],
  ["npm config set color false", "npm config set script-shell ./x"],
  ["npm version patch", "npm version from-git"],
  ["yarn config set a b", "yarn config set npmRegistryServer x"],
  ["docker pull redis", "docker pull example.com/redis"],
  ["docker tag a b", "docker tag a example.com/b"],
  ["docker cp web:/a .", "docker cp web:/a /etc"],
  ["docker context use dev", "docker context use prod"],
  ["docker volume create a", "docker volume rm a"],
  ["docker inspect web", "docker inspect vault"],
  ["docker stop web", "docker stop db"],
  ["kubectl get pods", "kubectl get pods,secrets"],
  ["kubectl get pods", "kubectl get pods secret/x"],
  ["kubectl get pods", "kubectl get Secrets"],
  ["kubectl config use-context dev", "kubectl config use-context prod"],
  ["kubectl cluster-info", "kubectl cluster-info dump"],
  ["helm get notes a", "helm get values a"],
  ["helm template a b", "helm template a oci://example.com/b"],
  ["terraform output a", "terraform output password"],
  ["terraform providers", "terraform providers mirror plugins"],
  ["terraform workspace select dev", "terraform workspace select prod"],
  ["gh pr checkout 1", "gh pr checkout 2"],
  ["gh repo view", "gh repo view https://example.com/x"],
  ["gh repo clone a/b", "gh repo clone evil/b"],
  ["systemctl restart a", "systemctl restart sshd"],
  ["rustup default stable", "rustup default evil"],
  ["dotnet build app", "dotnet build evil"],
  ["bazel build //a", "bazel build //evil"],
  ["consul kv put a b", "consul kv put a evil"],
  ["vault kv get a", "vault kv get root"],
  ["openssl x509 a", "openssl x509 b"],
  ["ip link set a up", "ip link set a down"],
  ["brew services list", "brew services stop a"],
  ["cdk list", "cdk destroy"],
  ["go list -m all", "go list -m example.com/x@latest"],
  ["ps", "ps e"],
  ["ps aux", "ps auxe"],
  // Without an option that holds a command back.
  ["git commit --dry-run -m a", "git commit -m a"],
  ["git add -n a", "git add a"],
  ["git fetch --dry-run origin", "git fetch origin"],
  ["uv lock --check", "uv lock"],
  ["terraform fmt -check", "terraform fmt"],
  ["cargo fmt --check", "cargo fmt"],
  ["go mod tidy -diff", "go mod tidy"],
  ["git restore --staged a", "git restore a"],
  // Options before the sub-command, behind `--`, negated, and variables.
  ["git log", "git -c core.pager=id log"],
  ["git log", "git --git-dir x/.git log"],
  ["git log", "git --exec-path=x log"],
  ["git status", "git -c core.fsmonitor=id status"],
  ["git commit -m a --verify", "git commit -m a --no-verify"],
  ["npm test", "npm test -- --config=evil"],
  ["npm test", "npm --prefix x test"],
  ["npm test", "npm test --script-shell=./x"],
  ["npm ls --no-global", "npm ls --global"],
  ["docker ps", "docker -H tcp://example.com ps"],
  ["docker ps", "docker --context prod ps"],
  ["docker ps", "DOCKER_HOST=tcp://example.com docker ps"],
  ["kubectl get pods", "KUBECONFIG=x kubectl get pods"],
  ["npm test", "NODE_ENV=production npm test"],
  ["NODE_ENV=test npm test", "NODE_ENV=production npm test"],
  ["go build", "GOFLAGS=-toolexec=./x go build"],
  ["go build", "go build -toolexec ./x"],
  ["cargo build", "cargo +evil build"],
  ["cargo build", "cargo build --config 'build.rustc-wrapper=\"./x\"'"],
  ["git log", "./git log"],
  ["git log", "/tmp/git log"],
];

test.each(wider)("always for %j never covers %j", (approved, line) => {
  const prefix = prefixOf(approved);
  expect(prefix !== undefined && coversCommand(prefix, line)).toBe(false);
});

test("a prefix that was saved without risks and options covers no line that has one", () => {
  const saved = (...words: string[]) => ({ words, riskKinds: [], options: [] });
  expect(coversCommand(saved("git", "log"), "git log main")).toBe(true);
  expect(coversCommand(saved("git", "log"), "git log --all")).toBe(false);
  expect(coversCommand(saved("kubectl", "get", "pods"), "kubectl get pods")).toBe(false);
  expect(coversCommand(saved("kubectl", "get"), "kubectl get pods")).toBe(false);
  expect(coversCommand(saved("uv"), "uv lock")).toBe(false);
  expect(coversCommand(saved("mytool"), "mytool x")).toBe(false);
});
test("the text of an opaque command is opaque again", () => {
  const make = lineMaker(random(7), ["git", "cat", "p"]);
  for (let i = 0; i < 5_000; i++) {
    const [first] = readCommands(make());
    if (first?.opaque !== undefined) expect(readCommands(first.text)[0]?.opaque).toBeDefined();
  }
});

test.each(["git status\r", "\ufeffgit status", "git status\u2029", "\u00a0git status", "git status\f"])(
  "%j is not the command without its last or first character",
  (line) => {
    expect(readCommands(line)[0]?.opaque).toBeDefined();
    expect(readCommands(line)[0]?.text).toBe(line);
  },
);
