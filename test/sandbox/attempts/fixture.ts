import { randomBytes } from "node:crypto";

/** Text that no attempt may print; another one in each run, so that no line and no other file contains it. */
export const secret = `leaked${randomBytes(8).toString("hex")}`;

/** Rules under which the attempts run. One rule allows in a directory what another denies elsewhere. */
export const attemptRules = `
[permission.bash]
"*" = "allow"
[permission.external_directory]
"/tmp/*" = "allow"
[permission.read]
"*" = "allow"
"*.env" = "deny"
"secrets/*" = "deny"
id_rsa = "deny"
"conf/db.yaml" = "deny"
"examples/*" = "allow"
"*.pem" = "deny"
[permission.edit]
"*" = "allow"
"locked/*" = "deny"
`;

/** The same denials, where the preset decides what runs. */
export const presetRules = `
[preset]
name = "contained"
[permission.read]
"*.env" = "deny"
"secrets/*" = "deny"
id_rsa = "deny"
"conf/db.yaml" = "deny"
"examples/*" = "allow"
"*.pem" = "deny"
[permission.edit]
"locked/*" = "deny"
`;

/** Files that are protected by their names, whatever rules say. */
const protectedFiles = [
  ...[".vscode/settings.json", ".github/workflows/ci.yml", ".husky/pre-commit", ".claude/settings.json"],
  ...[".npmrc", ".envrc", ".bashrc", ".mcp.json", ".opencode/config.toml", "pkg/.vscode/tasks.json"],
];

/** Makes the fixture in the working directory: files that rules deny, and those that are protected. */
export const makeFixture = `
set -e
umask 022
mkdir -p secrets public/sub sub locked empty conf examples deep/a shut loose/a hold
for file in .env prod.env secrets/key.txt secrets/id id_rsa conf/db.yaml deep/a/prod.env shut/x.pem loose/a/x.pem sub/.env; do
  echo "value=${secret} $file" > "$file"
done
for file in public/a.txt public/sub/b.txt sub/x.txt locked/f.txt; do echo "of $file" > "$file"; done
ln .env public/hard.txt
ln secrets/key.txt public/hard-key.txt
ln -s public/sub link
echo .env > list
printf '.env\\0' > list0
for file in ${protectedFiles.join(" ")}; do
  mkdir -p "$(dirname "$file")"
  echo '# {}' > "$file"
done
printf '.env\\n*.env\\nsecrets/\\nid_rsa\\nconf/\\n*.pem\\npublic/hard*\\n' > .gitignore
for repository in . sub; do
  git init -q -b main --template= "$repository"
  mkdir "$repository/.git/hooks"
  printf '#!/bin/sh\\n' > "$repository/.git/hooks/pre-push"
  git -C "$repository" config user.email a@example.com
  git -C "$repository" config user.name A
done
echo old > locked/f.txt
git add public/a.txt locked list && git commit -qm first
echo 'of locked/f.txt' > locked/f.txt
git commit -qam second
`;

/** Prints the state of what may not change. */
export const printState = `
find locked .git/config .git/hooks sub/.git/config sub/.git/hooks ${protectedFiles.join(" ")} \\
  -printf '%y %m %p %l\\n' -type f -exec md5sum {} + 2>&1 | LC_ALL=C sort
`;

/** Attempts: a text is a command line; a list is one that needs a fixture for itself, with a command line for each of its commands. */
export type Attempts = readonly (string | readonly string[])[];
