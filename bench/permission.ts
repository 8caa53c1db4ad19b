import { resolve } from "node:path";
import { PermissionAction, PermissionLayer } from "../gen/opencode/tool/v1/permission_pb.ts";
import { judgeShadow } from "../src/call/shadow.ts";
import type { ExpandedAsk, Layers } from "../src/policy/model.ts";
import { strictestOf } from "../src/policy/opinion.ts";
import { createPolicy } from "../src/policy/policy.ts";
import type { Rule } from "../src/policy/rules.ts";
import { readCommands } from "../src/policy/shell/command.ts";
import type { Files } from "../src/policy/shell/touched.ts";
import { median, percentile, table, target } from "./report.ts";

/** Sizes: decisions for each size of a list, and readings of each command line. */
export interface PermissionPlan {
  decisions: number;
  readings: number;
}

/** Measures a decision by the number of rules, and the analysis of a command line. */
export async function measurePermission(
  { decisions, readings }: PermissionPlan,
  print: (text: string) => void,
): Promise<void> {
  const policy = createPolicy({ guard: { dataDirectory: "/var/lib/toolgate" }, home: "/home/u" });
  const costs = [10, 100, 1_000].map((count) => ({
    count,
    micros: costOfDecision(policy, layersOf(count), decisions),
  }));
  const single = questions.map((question) => [question]);
  const shadow = await costOfShadow(policy, layersOf(100), single, decisions);
  const ofCommands = layersOf(100, "bash");
  const expanded = realistic.map((line) =>
    policy.expand({ permission: "bash", patterns: [line], cwd: "/w" }, ofCommands, files),
  );
  const shadowOfLines = await costOfShadow(policy, ofCommands, await Promise.all(expanded), decisions);
  const lines = realistic.map((line) => median(timesOf(() => readCommands(line), readings)));
  print(
    table(
      ["permission", "µs"],
      [
        ...costs.map(({ count, micros }) => [`a decision by ${count.toLocaleString("en")} rules`, micros.toFixed(1)]),
        ["100 shadow rules beside it, for an ask with one pattern", shadow.toFixed(1)],
        ["half of them about commands, for a command line", shadowOfLines.toFixed(1)],
        ["a command line understood: median", median(lines).toFixed(0)],
        ["the longest of them", percentile(lines, 1).toFixed(0)],
      ],
    ),
  );
  const [, hundred = Number.NaN, thousand = Number.NaN] = costs.map(({ micros }) => micros);
  print(
    [
      target("a decision by 100 rules", hundred, 5, "µs"),
      target("100 shadow rules beside it, for an ask with one pattern", shadow, 10, "µs"),
      target("half of them about commands, for a command line", shadowOfLines, 10, "µs"),
      target("by 1,000 rules ÷ by 100", thousand / hundred, 10, "times"),
      target("a command line understood", median(lines) / 1_000, 0.5, "ms", 3),
    ].join("\n"),
  );
}

const rounds = 9;
const questions = ["git status", "cmd7 build", "npm test", "nothing like it"].map((pattern) => ({
  permission: "task",
  patterns: [pattern],
}));

/** Files of a workspace in which each path is a file. */
const files: Files = {
  async resolve(path, cwd) {
    const absolute = resolve(cwd, path);
    const external = !absolute.startsWith("/w");
    return { absolute, pattern: external ? absolute : absolute.slice(3) || ".", external, isDirectory: false };
  },
  list: async () => [],
};

/** Measures the judgement of calls, each with its asks, by shadow rules that decide like those in force. */
async function costOfShadow(
  policy: ReturnType<typeof createPolicy>,
  layers: Layers,
  calls: readonly (readonly ExpandedAsk[])[],
  decisions: number,
): Promise<number> {
  const shadow = { layersFor: () => layers, count() {}, failed() {} };
  const subject = {
    session: undefined,
    ancestors: [],
    agent: "",
    workspace: "",
    directory: "/w",
    tool: "",
    binding: "",
  };
  const judged = calls.map((asks) => ({
    ...{ subject, planned: asks, asks, gitFiles: undefined, expand: async () => asks },
    byRules: strictestOf(asks.flatMap((ask) => policy.judge(ask, layers)))?.action ?? PermissionAction.ALLOW,
  }));
  const round = async () => {
    for (let i = 0; i < decisions; i += judged.length) for (const one of judged) await judgeShadow(policy, shadow, one);
  };
  await round();
  const micros: number[] = [];
  for (let i = 0; i < rounds; i++) {
    const before = process.cpuUsage();
    await round();
    micros.push(process.cpuUsage(before).user);
  }
  return median(micros) / decisions;
}

function costOfDecision(policy: ReturnType<typeof createPolicy>, layers: Layers, decisions: number): number {
  const round = () => {
    for (let i = 0; i < decisions; i += questions.length)
      for (const question of questions) policy.judge(question, layers);
  };
  round();
  const micros = Array.from({ length: rounds }, () => {
    const before = process.cpuUsage();
    round();
    return process.cpuUsage(before).user;
  });
  return median(micros) / decisions;
}

/** Rules as configurations have them: most for one program, a few for everything. */
function layersOf(count: number, about = "task"): Layers {
  const rules = Array.from({ length: count }, (_, i): Rule => {
    const action = i % 3 === 0 ? PermissionAction.ASK : PermissionAction.ALLOW;
    return { permission: i % 2 === 0 ? about : "read", pattern: i % 50 === 0 ? "*" : `cmd${i} *`, action };
  });
  return { wide: [{ layer: PermissionLayer.CONFIG, rules }], narrow: [] };
}

/** Times each of some runs in µs, once the code is warm. */
function timesOf(run: () => unknown, runs: number): number[] {
  for (let i = 0; i < runs; i++) run();
  return Array.from({ length: runs }, () => {
    const start = performance.now();
    run();
    return (performance.now() - start) * 1_000;
  });
}

const realistic = [
  "git status",
  "npm test",
  "ls -la src",
  "cd packages/a && npm run build 2>&1 | tail -n 40",
  "git add -A && git commit -m 'fix: the parser keeps what it read'",
  "grep -rn --include='*.ts' 'createPolicy(' src test | head -20",
  "find . -name '*.test.ts' -not -path './node_modules/*' | xargs wc -l | sort -n | tail -5",
  "sed -n '100,160p' src/permission/policy.ts",
  'for f in src/*.ts; do node --check "$f" || exit 1; done',
  "curl -sS -X POST -H 'Content-Type: application/json' -d '{\"a\": 1}' https://api.example.com/v1/x | jq '.items[] | .id'",
  "timeout 120 bash -c 'npm ci && npm test' > test.log 2>&1; tail -n 30 test.log",
  "cat > src/new.ts <<'EOF'\nexport const answer = 42;\nexport function ask(): number {\n  return answer;\n}\nEOF",
];
