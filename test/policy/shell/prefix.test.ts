import { expect, test } from "vitest";
import { readCommands } from "../../../src/policy/shell/command.ts";
import { coversCommand, prefixOf } from "../../../src/policy/shell/prefix.ts";
import { lineMaker, random } from "./lines.ts";

test.each([
  ["git commit -m 'a b'", ["git", "commit"]],
  ["git stash pop", ["git", "stash", "pop"]],
  ["npm run build -- --watch", ["npm", "run", "build"]],
  ["npm test", ["npm", "test"]],
  ["docker compose ps", ["docker", "compose", "ps"]],
  ["ls -la src", ["ls"]],
  ["docker ps -a", ["docker", "ps"]],
  ["CI=1 npm test", ["npm", "test"]],
  ["git push origin main", ["git", "push", "origin"]],
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
    ["git log", "git log -5 main", "git log -20", "git log src/a.ts"],
    ["git log --all", "git log -p", "git push", "git log; id", "git log > x", "git log $(id)", "LD_PRELOAD=x git log"],
  ],
  ["git log", ["git log main", "git log -- src"], ["git log -5", "git -C x log", "git logs", "git"]],
  ["git status -s", ["git status -s", "git status", "git status -s src"], ["git status -s -uno", "git status --short"]],
  [
    "git clean -n",
    ["git clean -n", "git clean -n src"],
    ["git clean -fdx", "git clean -n -f", "git clean -nfd", "git clean", "git clean src"],
  ],
  [
    "git reset HEAD",
    ["git reset", "git reset HEAD~1"],
    ["git reset --hard", "git reset --hard HEAD~1", "git reset -q"],
  ],
  [
    "git branch x",
    ["git branch y"],
    ["git branch -D x", "git branch -d x", "git branch --delete x", "git branch -m x y"],
  ],
  ["git tag v1", ["git tag v2"], ["git tag -d v1", "git tag -f v1"]],
  ["git stash list", ["git stash list"], ["git stash drop", "git stash clear", "git stash", "git stash pop"]],
  ["git checkout main", ["git checkout other"], ["git checkout -- src", "git checkout .", "git checkout -f main"]],
  ["git restore --staged x", ["git restore --staged y"], ["git restore x", "git restore ."]],
  ["git commit -m a", ["git commit -m b"], ["git commit --amend", "git commit -m b --no-verify", "git commit -am b"]],
  ["git add src", ["git add test"], ["git add -A", "git add -f .env"]],
  [
    "git push origin main",
    ["git push origin main", "git push origin other"],
    [
      ...[
        "git push --force origin main",
        "git push origin --delete main",
        "git push origin :main",
        "git push origin +main",
      ],
      ...["git push evil main", "git push https://example.com/x main", "git push"],
    ],
  ],
  ["git fetch origin", ["git fetch origin main"], ["git fetch evil", "git fetch --all", "git pull origin"]],
  ["git worktree list", ["git worktree list"], ["git worktree remove x", "git worktree add x"]],
  ["git remote show", ["git remote show origin"], ["git remote add evil x", "git remote remove origin", "git remote"]],
  [
    "npm test",
    ["npm test", "npm test src", "CI=1 npm test"],
    ["npm test -- --watch", "npm test --prefix ../x", "npm run test", "npm install", "NODE_OPTIONS=x npm test"],
  ],
  ["npm run build", ["npm run build web"], ["npm run deploy", "npm run build -- --watch", "npm run"]],
  ["npm view react", ["npm view vue"], ["npm publish", "npm view react --registry=http://x"]],
  ["npm uninstall a", ["npm uninstall b"], ["npm install b", "npm uninstall -g b"]],
  ["cargo test", ["cargo test parser"], ["cargo test --config x", "cargo publish", "cargo install x", "cargo build"]],
  ["go test ./...", ["go test ./a"], ["go test -exec x ./...", "go run ./a", "go get x"]],
  ["uv lock", ["uv lock"], ["uv run sh -c id", "uv publish", "uv pip install x", "uv lock --script x"]],
  ["bundle list", ["bundle list"], ["bundle exec sh", "bundle install", "bundle update"]],
  ["dotnet build", ["dotnet build app"], ["dotnet exec x.dll", "dotnet run", "dotnet build -o x"]],
  ["poetry show", ["poetry show requests"], ["poetry run sh", "poetry publish", "poetry add x"]],
  ["docker ps", ["docker ps"], ["docker run x", "docker rm x", "docker ps -a", "docker system prune", "docker"]],
  [
    "docker logs -f web",
    ["docker logs web", "docker logs -f api"],
    ["docker logs --details web", "docker exec web sh"],
  ],
  [
    "docker compose ps",
    ["docker compose ps web"],
    ["docker compose down -v", "docker compose up", "docker compose run x sh"],
  ],
  ["kubectl get pods", ["kubectl get nodes"], ["kubectl get secrets", "kubectl get pods -A", "kubectl delete pod x"]],
  ["kubectl config current-context", [], ["kubectl config view --raw", "kubectl config use-context prod"]],
  ["terraform state list", ["terraform state list x"], ["terraform state rm x", "terraform destroy"]],
  [
    "terraform plan",
    ["terraform plan"],
    ["terraform apply", "terraform plan -destroy", "terraform apply -auto-approve"],
  ],
  ["gh pr view 1", ["gh pr view 2"], ["gh pr merge 1", "gh pr close 1", "gh pr view 1 --web", "gh auth token"]],
  [
    "aws s3 ls",
    ["aws s3 ls bucket"],
    ["aws s3 rm s3://x", "aws s3 rb s3://x", "aws s3 cp a s3://x", "aws s3 ls --profile x"],
  ],
  ["redis-cli get a", ["redis-cli get b"], ["redis-cli flushall", "redis-cli -h x get a"]],
  ["ls -la", ["ls -la src", "ls src"], ["ls -R", "ls --color", "ls -la *.ts"]],
  [
    "cat README.md",
    ["cat package.json"],
    ["cat .env", "cat id_rsa", "cat README.md > x", "cat -A README.md", "cat <<'E'\nx\nE"],
  ],
  ["grep -n x a", ["grep -n y b", "grep y b"], ["grep -r x .", "grep -f x a"]],
  ["echo a", ["echo b"], ["echo a; id", "echo $(id)", "echo -e a", "echo $TOKEN"]],
  ["mkdir -p a", ["mkdir -p b", "mkdir b"], ["mkdir -m 777 b", "rmdir a"]],
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

test("a prefix that was saved without risks and options covers no line that has one", () => {
  const saved = (...words: string[]) => ({ words, riskKinds: [], options: [] });
  expect(coversCommand(saved("git", "log"), "git log main")).toBe(true);
  expect(coversCommand(saved("git", "log"), "git log --all")).toBe(false);
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
