import { expect, test } from "vitest";
import { readCommands } from "../../../src/policy/shell/command.ts";
import { beginsWith, prefixOf } from "../../../src/policy/shell/prefix.ts";
import { lineMaker, random } from "./lines.ts";

test.each([
  ["git commit -m 'a b'", ["git", "commit"]],
  ["git remote -v", ["git", "remote", "-v"]],
  ["git stash pop", ["git", "stash", "pop"]],
  ["npm run build -- --watch", ["npm", "run", "build"]],
  ["npm test", ["npm", "test"]],
  ["npm run", ["npm", "run"]],
  ["git --no-pager log", undefined],
  ["docker -H x ps", undefined],
  ["docker exec c id", undefined],
  ["docker compose up -d", ["docker", "compose", "up"]],
  ["deno run x.ts", undefined],
  ["git submodule foreach id", undefined],
  ["ls -la src", ["ls"]],
  ["docker ps -a", ["docker", "ps"]],
  ["mytool x y", ["mytool"]],
  ["git -C x status", undefined],
  ["git status; id", undefined],
  ["git status > x", undefined],
  ["git status $(id)", undefined],
  ["CI=1 npm test", ["npm", "test"]],
  ["find . -delete", undefined],
  ["bash -c 'git status'", undefined],
  ["bash x.sh", undefined],
  ["timeout 5 npm test", undefined],
  ["sudo npm test", undefined],
  ["node x.js", undefined],
  ["npx tsc", undefined],
  ["env npm test", undefined],
  ["xargs rm", undefined],
  ["./x.sh a", undefined],
  ["ls *.ts", undefined],
  ["ssh host uptime", undefined],
  ["rm -rf x", undefined],
  ["curl https://example.com", undefined],
])("%s keeps %j", (line, prefix) => {
  expect(prefixOf(line)).toEqual(prefix);
});

test("words are those of one command alone", () => {
  expect(beginsWith("rm 'a b'", ["rm", "a b"])).toBe(true);
  expect(beginsWith("rm a b", ["rm", "a b"])).toBe(false);
  expect(beginsWith("rm a b", ["rm", "a"])).toBe(true);
  expect(beginsWith("LD_PRELOAD=x git log", ["git"])).toBe(false);
  expect(beginsWith("cat <<'E'\nx\nE", ["cat"])).toBe(false);
});

test("an effect of a sub-command is covered only if the grant names it", () => {
  expect(beginsWith("docker run nginx", ["docker", "run"])).toBe(true);
  expect(beginsWith("docker run nginx", ["docker"])).toBe(false);
  expect(beginsWith("docker ps", ["docker"])).toBe(true);
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
