import { hash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  type DecisionFacts,
  DecisionFactsSchema,
  type PermissionAction,
  PermissionLayer,
  type PermissionRule,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import packageJson from "../../package.json" with { type: "json" };
import type { FileRules } from "../policy/file-rules.ts";
import type { ExpandedAsk, Layers, Subject, Wall } from "../policy/model.ts";
import type { Policy } from "../policy/policy.ts";
import type { Rule } from "../policy/rules.ts";
import type { ExpandPlace, Files, GitNames } from "../policy/shell/touched.ts";

/** Answers of the files of a machine while one decision is made, by question. */
export type Answers = Record<string, unknown>;

/** Maximum length of what a record stores of a decision. */
const maxRecorded = 8_192;

/** Access to files that records its answers, and stops recording where they are too many. */
export interface Recorder {
  readonly files: Files;
  /** Records that the decision cannot be repeated. */
  giveUp(): void;
  /** Returns the answers; undefined if they are too many. */
  answers(): Answers | undefined;
}

/** Creates the recorder of one decision. */
export function createRecorder(files: Files): Recorder {
  let answers: Answers | undefined = {};
  let size = 0;
  function note<T>(question: string, answer: T): T {
    if (answers === undefined || Object.hasOwn(answers, question)) return answer;
    size += question.length + JSON.stringify(answer).length;
    if (size > maxRecorded) answers = undefined;
    else answers[question] = answer;
    return answer;
  }
  const names = (top: string, of: GitNames): GitNames => ({
    select: (...about) => note(fileQuestion("names", top, about), of.select(...about)),
    problem(about) {
      const problem = of.problem(about);
      note(fileQuestion("problem", top, about), problem ?? false);
      return problem;
    },
  });
  return {
    files: {
      async resolve(path, cwd) {
        const question = fileQuestion("path", cwd, path);
        try {
          const place = await files.resolve(path, cwd);
          note(question, placeForm(place));
          return place;
        } catch (cause) {
          note(question, false);
          throw cause;
        }
      },
      async list(directory, wanted) {
        const all = await files.list(directory, wanted);
        const entries = wanted ? all.filter(({ name }) => wanted.includes(name)) : all;
        note(
          fileQuestion("list", directory, ...(wanted ?? [])),
          entries.map(({ name, isDirectory, isLink }) => `${isDirectory ? "d" : isLink ? "l" : "f"}${name}`),
        );
        return entries;
      },
      ...(files.tracked && {
        async tracked(directory) {
          const isTracked = await files.tracked?.(directory);
          note(fileQuestion("index", directory), isTracked !== undefined);
          return isTracked && ((path) => note(fileQuestion("tracked", directory, path), isTracked(path)));
        },
      }),
      ...(files.gitNames && {
        async gitNames(top) {
          const found = await (files.gitNames as NonNullable<Files["gitNames"]>)(top);
          return names(top, found);
        },
      }),
    },
    giveUp() {
      answers = undefined;
    },
    answers: () => answers,
  };
}

/** Names a question to the files of a machine. */
export const fileQuestion = (...parts: readonly unknown[]) => JSON.stringify(parts);

/** A path that was resolved. */
export type PlaceForm = [absolute: string, pattern: string, kind: number, alwaysAsk?: string];

function placeForm({ absolute, pattern, external, isDirectory, alwaysAsk }: ExpandPlace): PlaceForm {
  const kind = (external ? 1 : 0) + (isDirectory ? 2 : 0);
  return alwaysAsk === undefined ? [absolute, pattern, kind] : [absolute, pattern, kind, alwaysAsk];
}

/** A decision as a record stores it. */
export interface Recorded {
  tool?: string;
  asks: Partial<ExpandedAsk>[];
  /** True if the sandbox held the command lines. */
  walled?: true;
  answers?: Answers;
  /** The rules of the session, then those of its ancestors, root first, with their agents. */
  session?: RuleForm[];
  ancestors?: { agent: string; rules: RuleForm[] }[];
  gitFiles?: Layers["gitFiles"];
}

/** A rule of a session. */
export type RuleForm = [permission: string, pattern: string, action: PermissionAction];

/** The parts of a decision that is to be recorded. */
interface Decided {
  subject: Subject;
  asks: readonly ExpandedAsk[];
  tool: string | undefined;
  layers: Layers;
  wall: Wall | undefined;
  recorder: Recorder;
  byRules: PermissionAction;
}

/** Builds the facts of a decision. */
export function decisionFacts(
  { policy, policyDigest }: { policy: Pick<Policy, "fileRules">; policyDigest(): string },
  { subject, asks, tool, layers, wall, recorder, byRules }: Decided,
): DecisionFacts {
  const { workspace, directory, session, ancestors } = subject;
  const answers = recorder.answers();
  const form: Recorded = {
    ...(tool !== undefined && { tool }),
    asks: asks.map(askForm),
    ...(wall && { walled: true as const }),
    ...(answers && Object.keys(answers).length > 0 && { answers }),
    ...(session && session.rules.length > 0 && { session: session.rules.map(ruleForm) }),
    ...(ancestors.length > 0 && {
      ancestors: ancestors.map(({ agent, rules }) => ({ agent, rules: rules.map(ruleForm) })),
    }),
    ...(layers.gitFiles && layers.gitFiles.paths.length > 0 && { gitFiles: layers.gitFiles }),
  };
  const recorded = answers && JSON.stringify(form);
  return create(DecisionFactsSchema, {
    version: packageJson.version,
    rules: rulesId(policyDigest(), layers),
    place: placeId(policy.fileRules(noLayers), wall),
    ...{ action: byRules, workspace, directory },
    recorded: recorded && Buffer.byteLength(recorded) <= maxRecorded ? recorded : "",
  });
}

const noLayers: Layers = { wide: [], narrow: [] };

/** Copies the fields of an ask on which its decision rests. */
function askForm(ask: ExpandedAsk): Partial<ExpandedAsk> {
  const { permission, patterns, paths, cwd, isText, alwaysAsk, leadsTo, isConfigured } = ask;
  return {
    ...{ permission, patterns },
    ...(paths && { paths }),
    ...(cwd !== undefined && { cwd }),
    ...(isText && { isText }),
    ...(alwaysAsk !== undefined && { alwaysAsk }),
    ...(leadsTo !== undefined && { leadsTo }),
    ...(isConfigured && { isConfigured }),
  };
}

const ruleForm = ({ permission, pattern, action }: PermissionRule): RuleForm => [permission, pattern, action];

/** Identifies the rules of a decision: those of the configuration, and of the policy files of the workspace. */
export function rulesId(digest: string, { wide, narrow }: Pick<Layers, "wide" | "narrow">): string {
  const files = workspaceLists({ wide, narrow });
  if (files.length === 0) return digest.slice(0, idLength);
  const plain = (rule: Rule) => [rule.permission, rule.pattern, rule.action, rule.when ?? ""];
  return idOf([digest, files.map(({ rules, source, problem, widens }) => [source, problem, widens, rules.map(plain)])]);
}

/** Identifies what a decision rests on and no record has: the files that the engine protects, and the sandbox of commands. */
export function placeId(
  { guard, home, connectorFiles }: Pick<FileRules, "guard" | "home" | "connectorFiles">,
  wall: Wall | undefined,
): string {
  const held = wall && [wall.hides, wall.problem, wall.temporary, wall.writable, wall.hasNetwork];
  // A file of rules that are tried must not make the past another one.
  const { shadowFile: _, ...lasting } = guard;
  return idOf([Object.entries(lasting), home, connectorFiles, held]);
}

const idLength = 16;
const idOf = (value: unknown) => hash("sha256", JSON.stringify(value), "hex").slice(0, idLength);

/** Returns the lists of policy files of a workspace among layers. */
export const workspaceLists = ({ wide, narrow }: Pick<Layers, "wide" | "narrow">) =>
  [...wide, ...narrow].filter(({ layer }) => layer === PermissionLayer.WORKSPACE);
