import { describe, expect, test } from "vitest";
import { PermissionAction, PermissionLayer } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { createPolicy, strictest } from "../../../src/policy/policy.ts";
import { fromConfig, type RuleConfig } from "../../../src/policy/rules.ts";

const { ALLOW, ASK, DENY } = PermissionAction;
const policy = createPolicy({ guard: { dataDirectory: "/var/lib/toolgate" }, home: "/home/u" });

function bash(line: string, rules: RuleConfig, session?: RuleConfig): PermissionAction {
  const layers = {
    wide: [{ layer: PermissionLayer.CONFIG, rules: fromConfig(rules, "/home/u") }],
    narrow: session ? [{ layer: PermissionLayer.SESSION, rules: fromConfig(session, "/home/u") }] : [],
  };
  return strictest(policy.judge({ permission: "bash", patterns: [line], cwd: "/srv/p" }, layers));
}

describe("a command", () => {
  test.each<[string, RuleConfig, PermissionAction]>([
    ["npm test", { bash: { "npm test": "allow" } }, ALLOW],
    ["git   status  -s ", { bash: { "git status *": "allow" } }, ALLOW],
    ["  git status", { bash: { "*": "deny", "git *": "allow" } }, ALLOW],
    ["npm test --prefix x", { bash: { "npm test": "allow" } }, ASK],
    ["/tmp/evil/git status", { bash: { "git *": "allow" } }, ASK],
    ["/bin/rm -rf x", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["/bin/rm -rf x", { bash: { "*": "allow", "rm *": "ask" } }, ASK],
    ["/usr/bin/git log", { bash: { "*": "ask", "/usr/bin/git *": "allow" } }, ALLOW],
    ["env A=1 /bin/rm -rf x", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["sudo -u bob rm x", { bash: { "sudo *": "allow", "rm *": "deny" } }, DENY],
    ["timeout 60 npm test", { bash: { "npm test *": "allow", "timeout *": "allow" } }, ALLOW],
    ["git\tstatus", { bash: { "git status": "allow" } }, ALLOW],
    ["CI=1 npm test 2>&1", { bash: { "npm test": "allow" } }, ALLOW],
    ["git status; rm x", { bash: { "git *": "allow" } }, ASK],
    ["git status; rm x", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["git status | wc -l", { bash: { "git *": "allow", "wc *": "allow" } }, ALLOW],
    ["git status | wc -l", { bash: { "git *": "allow", "wc *": "allow", "*|*": "ask" } }, ASK],
    ["git status && id", { bash: { "git status && id": "allow" } }, ALLOW],
    ["awk 'NR>1 && $3 > 5 {print $1\"|\"$2; n++} END {print n}' a", { bash: { "awk *": "allow" } }, ALLOW],
    ["awk '{print $1 > \"b;\"}' a", { bash: { "awk *": "allow" } }, ASK],
    ['awk \'/"/ {print 1 > "b"}\' a', { bash: { "awk *": "allow" } }, ASK],
    ["awk '{print 1, # }\n 2 > \"b\"}' a", { bash: { "awk *": "allow" } }, ASK],
    ["awk '{x=1print 1 > \"b\"}' a", { bash: { "awk *": "allow" } }, ASK],
    ['awk \'{print "\\";" > "b"}\' a', { bash: { "awk *": "allow" } }, ASK],
    ['awk \'{print "a" | "sh"}\' a', { bash: { "awk *": "allow" } }, ASK],
    ["awk '{print 1; print 2 > $1}' a", { bash: { "awk *": "allow" } }, ASK],
    ["curl -s -o /dev/null -w '%{http_code}' https://a.example", { bash: { "curl *": "allow" } }, ALLOW],
    ["curl -w '%{url} %output{b}' https://a.example", { bash: { "curl *": "allow" } }, ASK],
    ["curl -sw@b https://a.example", { bash: { "curl *": "allow" } }, ASK],
    [`git commit -m "$(cat <<'EOF'\nfix: \`a\` "b" $c)\n\nEOF\n)"`, { bash: { "git commit *": "allow" } }, ALLOW],
    [`git commit -m "$(cat <<'EOF'\nx\nEOF\n)"`, { bash: { "*": "allow", "git commit -m x": "deny" } }, DENY],
    [`"$(cat <<'EOF'\nrm\nEOF\n)" x`, { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    [`git commit -m "$(cat <<EOF\n$(id)\nEOF\n)"`, { bash: { "git commit *": "allow" } }, ASK],
    [`git commit -m $(cat <<'EOF'\n-F /etc/passwd\nEOF\n)`, { bash: { "git commit *": "allow" } }, ASK],
    [`git commit -m "$(cat a <<'EOF'\nx\nEOF\n)"`, { bash: { "git commit *": "allow" } }, ASK],
    [`git commit -m "$(cat <<'EOF'\nx\nEOF\nid)"`, { bash: { "git commit *": "allow" } }, ASK],
    [`cat <<'A' "$(cat <<'EOF'\nx\nEOF\n)"\nx\nA\n`, { bash: { "cat *": "allow" } }, ASK],
    ["git -C a status", { bash: { "git status *": "allow" } }, ASK],
    ["git -C a push", { bash: { "git *": "allow", "git push *": "deny" } }, DENY],
    ["git -C a --git-dir=b status", { bash: { "git *": "allow" } }, ASK],
    ["git -C * status", { bash: { "git *": "allow" } }, ASK],
    ["git -C a status", { bash: { "git *": "allow" } }, ALLOW],
    ["find . -delete", { bash: { "find *": "allow" } }, ASK],
    ["find . -delete", { bash: { "find . -delete": "allow" } }, ALLOW],
    ["find . -delete -print", { bash: { "find . -delete *": "allow" } }, ALLOW],
    ["find . -name x -delete", { bash: { "find . *": "allow" } }, ASK],
    ["timeout 60 rm x", { bash: { "timeout *": "allow" } }, ASK],
    ["bash -c 'git status; ls'", { bash: { "bash *": "allow", "git *": "allow", "ls *": "allow" } }, ALLOW],
    ["bash -c 'git status; rm x'", { bash: { "bash *": "allow", "git *": "allow" } }, ASK],
    ["rm a b", { bash: { "rm 'a b'": "allow" } }, ASK],
    ['rm "a b"', { bash: { "rm 'a b'": "allow" } }, ALLOW],
    ['rm "a b"', { bash: { 'rm "a b"': "allow" } }, ALLOW],
    ["echo rm x", { bash: { "*": "allow", "rm *": "deny" } }, ALLOW],
    ["CI=1 npm test > log.txt", { bash: { "npm test": "allow" } }, ALLOW],
    ["NODE_OPTIONS=--require=./x.js npm test", { bash: { "npm test": "allow" } }, ASK],
    ["PATH=./x npm test", { bash: { "npm test": "allow" } }, ASK],
    ["GIT_EXTERNAL_DIFF=./x git diff", { bash: { "git diff": "allow" } }, ASK],
    ["npm test < /proc/self/fd/3", { bash: { "npm test": "allow" } }, ASK],
    ["NODE_OPTIONS=x npm test", { bash: { "NODE_OPTIONS=x npm test": "allow" } }, ALLOW],
    ["bash -oc errexit 'rm -rf x'", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["bash -eoc pipefail 'rm -rf x'", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["bash -c - 'rm -rf x'", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["bash -c -- 'rm -rf x'", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["bash -s a <<< 'rm -rf x'", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["echo 1 | node --import tsx", { bash: { "echo *": "allow", "node --import tsx *": "allow" } }, ASK],
    ["echo 1 | python3 -m json.tool", { bash: { "echo *": "allow", "python3 -m json.tool *": "allow" } }, ALLOW],
    ["echo 1 | tsx --version", { bash: { "echo *": "allow", "tsx --version *": "allow" } }, ALLOW],
    ["echo 1 | node --version", { bash: { "echo *": "allow", "node *": "allow" } }, ALLOW],
    ["bash -eo pipefail -c 'npm test'", { bash: { "bash *": "allow", "npm *": "allow" } }, ALLOW],
    ["bash - x.sh", { bash: { "bash *": "allow" } }, ALLOW],
    ["node --test --test-reporter 'data:text/javascript,1'", { bash: { "node *": "allow" } }, ASK],
    ["node --test --test-reporter spec", { bash: { "node *": "allow" } }, ALLOW],
    [`uv -q ${"a ".repeat(40)}run rm -rf x`, { bash: { "*": "allow", "rm *": "deny" } }, ASK],
    [`uv ${"a ".repeat(300)}rm -rf x`, { bash: { "*": "allow", "rm *": "deny" } }, ASK],
    [`eslint ${"a ".repeat(60)}rm/b`, { bash: { "*": "allow", "rm *": "deny" } }, ALLOW],
    [`sg g '${"ab ".repeat(70)}; rm -rf x'`, { bash: { "*": "allow", "rm *": "deny" } }, ASK],
    [`git ${"--no-pager ".repeat(70)}push`, { bash: { "*": "allow", "git push *": "deny" } }, DENY],
    [`kubectl ${"-n a ".repeat(70)}delete pod`, { bash: { "*": "allow", "kubectl delete *": "deny" } }, ASK],
    [`ssh ${"-v ".repeat(70)}host rm x`, { bash: { "*": "allow", "rm *": "deny" } }, ASK],
  ])("%s", (line, rules, action) => {
    expect(bash(line, rules)).toBe(action);
  });
});

describe("an opaque line", () => {
  const lines = [
    "git status & id",
    "git log $(id)",
    "{ git status; }",
    "git status ~",
    "for f in a; do git status; done",
    "git status; export A=1",
    "",
    "  ",
    `git log ${"a".repeat(8_192)}`,
  ];

  test.each(lines)("is not allowed by a rule for a part: %j", (line) => {
    expect(bash(line, { bash: { "git *": "allow", "": "allow", " *": "allow", "for *": "allow" } })).toBe(ASK);
  });

  test.each(lines)("is allowed by * where nothing narrower asks or denies: %j", (line) => {
    expect(bash(line, { bash: "allow" })).toBe(ALLOW);
    expect(bash(line, { bash: { "rm *": "deny", "*": "allow" } })).toBe(ASK);
    expect(bash(line, { bash: "allow" }, { bash: { "rm *": "ask" } })).toBe(ASK);
    expect(bash(line, { bash: "allow", "*": { "x *": "deny" } })).toBe(ASK);
  });

  test.each([
    "rm -rf x & id",
    "\n /bin/rm -rf x & id",
    "{ id; rm -rf x; }",
    "echo $(sudo rm x)",
    "if true; then 'rm' x; fi",
    "env $A rm x",
  ])("is denied where a deny matches a command in it: %j", (line) => {
    expect(bash(line, { bash: { "*": "allow", "rm *": "deny" } })).toBe(DENY);
    expect(bash(line, { bash: "deny" })).toBe(DENY);
  });

  test("is denied where a session denies all except a part", () => {
    expect(bash("git status & id", { bash: "allow" }, { bash: { "*": "deny", "git *": "allow" } })).toBe(DENY);
  });

  test("the reason names the rule that might be about a part of it, and the part that was not understood", () => {
    const rules = fromConfig({ bash: { "rm *": "deny", "*": "allow" } }, "");
    const layers = { wide: [{ layer: PermissionLayer.CONFIG, rules }], narrow: [] };
    expect(policy.judge({ permission: "bash", patterns: ["a & b"] }, layers)[0]?.reason).toBe(
      'config rule 0 (bash "rm *" deny) might be about a part of it: the operator &: ask',
    );
  });
});
