import { create, type JsonObject } from "@bufbuild/protobuf";
import { z } from "zod";
import { type DecisionFacts, PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Verdict } from "../approval/judge-asks.ts";
import type { FileRules } from "../policy/file-rules.ts";
import type { ExpandedAsk, Layers, Subject, Wall } from "../policy/model.ts";
import type { ExpandPlace, Files } from "../policy/shell/touched.ts";
import { type Deciding, decide } from "./decide.ts";
import { type Answers, fileQuestion, type PlaceForm, placeId, type Recorded, type RuleForm } from "./decision-facts.ts";

/** Access to files that answers as was recorded. */
interface Replay {
  readonly files: Files;
  /** Records that the decision needs what is not known. */
  miss(what: string): Error;
  /** Names an answer that was needed and is not recorded; undefined if there is none. */
  missing(): string | undefined;
}

function createReplay(answers: Answers): Replay {
  let missing: string | undefined;
  function miss(what: string): Error {
    missing ??= what;
    return new Error(`not recorded: ${what}`);
  }
  function known<T>(question: string, isKnown: (answer: unknown) => answer is T): T {
    const answer = Object.hasOwn(answers, question) ? answers[question] : undefined;
    if (!isKnown(answer)) throw miss("what was found of the files that it names");
    return answer;
  }
  return {
    miss,
    missing: () => missing,
    files: {
      async resolve(path, cwd) {
        const place = known(fileQuestion("path", cwd, path), isPlaceForm);
        if (place === false) throw new Error("it could not be resolved");
        return placeOfForm(place);
      },
      async list(directory, wanted = []) {
        return known(fileQuestion("list", directory, ...wanted), isTexts).map((text) => ({
          ...{ name: text.slice(1), isDirectory: text.startsWith("d"), isLink: text.startsWith("l") },
        }));
      },
      async tracked(directory) {
        if (!known(fileQuestion("index", directory), isBoolean)) return undefined;
        return (path) => known(fileQuestion("tracked", directory, path), isBoolean);
      },
      gitNames: async (top) => ({
        select: (...about) => known(fileQuestion("names", top, about), isTexts),
        problem: (about) => known(fileQuestion("problem", top, about), isTextOrFalse) || undefined,
      }),
    },
  };
}

function placeOfForm([absolute, pattern, kind, alwaysAsk]: PlaceForm): ExpandPlace {
  const place = { absolute, pattern, external: kind % 2 === 1, isDirectory: kind >= 2 };
  return alwaysAsk === undefined ? place : { ...place, alwaysAsk };
}

const isBoolean = (answer: unknown) => typeof answer === "boolean";
const isText = (answer: unknown) => typeof answer === "string";
const isTextOrFalse = (answer: unknown): answer is string | false => answer === false || isText(answer);
const isTexts = (answer: unknown): answer is string[] => Array.isArray(answer) && answer.every(isText);
const isPlaceForm = (answer: unknown): answer is PlaceForm | false =>
  answer === false ||
  (Array.isArray(answer) && isText(answer[0]) && isText(answer[1]) && typeof answer[2] === "number");

const ruleOfForm = ([permission, pattern, action]: RuleForm) => ({ permission, pattern, action });

/** The machine on which decisions are repeated, without its files. */
export interface ReplayParts extends Omit<Deciding, "files" | "gitNames" | "confines"> {
  place: Pick<FileRules, "guard" | "home" | "connectorFiles">;
  /** Returns what the sandbox enforces now for the commands of an agent. */
  wall(agent: string): Wall | undefined;
}

/** A decision that can be repeated. */
export interface Repeatable {
  readonly subject: Subject;
  /** Decides by other rules. Returns the reason if what these need is not recorded. */
  by(layers: Layers): Promise<Verdict | string>;
}

/** Reads the facts of a decision. Returns the reason if it cannot be repeated. `input` is the input of the call; absent: not stored any more. */
export function repeatable(
  parts: ReplayParts,
  agent: string,
  facts: DecisionFacts,
  input?: JsonObject,
): Repeatable | string {
  if (facts.recorded === "") return "more than a record holds";
  const form = readRecorded(facts.recorded);
  if (!form) return "a record is damaged";
  const wall = form.walled && parts.wall(agent);
  if (placeId(parts.place, wall) !== facts.place) return "the sandbox or the protected files differ from then";
  const { workspace, directory } = facts;
  const { tool, asks, answers = {}, session, ancestors = [], gitFiles } = form;
  const sessionOf = (id: string, named: string, rules: readonly RuleForm[]) =>
    create(SessionSchema, { id, agent: named, rules: rules.map(ruleOfForm) });
  const subject: Subject = {
    session: session && sessionOf("session", agent, session),
    ancestors: ancestors.map((each, i) => sessionOf(`ancestor ${i + 1}`, each.agent, each.rules)),
    ...{ agent, workspace, directory, tool: tool ?? "", binding: "" },
  };
  return {
    subject,
    async by(rules) {
      const replay = createReplay(answers);
      const unknown = new Proxy({}, { getOwnPropertyDescriptor: missInput, get: missInput, has: missInput });
      function missInput(): never {
        throw replay.miss("the input that a condition uses");
      }
      const call = { ...(tool !== undefined && { tool }), input: input ?? unknown };
      const plan = { title: "", asks: asks.map((ask) => ({ ...ask, call })) as ExpandedAsk[] };
      const workspace = { resolve: () => Promise.reject(replay.miss("a path")) };
      const planning = { ...parts, files: () => replay.files, ...(wall && { confines: () => wall }) };
      try {
        const decision = await decide(
          planning,
          { subject, principal: "", plan, workspace },
          { grants: "none", rules: { ...rules, ...(gitFiles && { gitFiles }) } },
        );
        return replay.missing() ?? decision.verdict;
      } catch (cause) {
        const missing = replay.missing();
        if (missing === undefined) throw cause;
        return missing;
      }
    },
  };
}

const texts = z.array(z.string());
const rules = z.array(z.tuple([z.string(), z.string(), z.enum(PermissionAction)]));
const recordedForm: z.ZodType<Recorded> = z.object({
  tool: z.string().exactOptional(),
  asks: z.array(
    z.object({
      permission: z.string(),
      patterns: texts,
      paths: texts.exactOptional(),
      cwd: z.string().exactOptional(),
      isText: z.literal(true).exactOptional(),
      alwaysAsk: z.string().exactOptional(),
      leadsTo: z.string().exactOptional(),
      isConfigured: z.literal(true).exactOptional(),
    }),
  ),
  walled: z.literal(true).exactOptional(),
  answers: z.record(z.string(), z.unknown()).exactOptional(),
  session: rules.exactOptional(),
  ancestors: z.array(z.object({ agent: z.string(), rules })).exactOptional(),
  gitFiles: z.object({ paths: texts, parents: texts, code: texts }).exactOptional(),
});

function readRecorded(text: string): Recorded | undefined {
  try {
    return recordedForm.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}
