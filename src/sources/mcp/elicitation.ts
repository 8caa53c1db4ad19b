import type { MessageInitShape } from "@bufbuild/protobuf";
import type { ElicitRequest, ElicitResult } from "@modelcontextprotocol/client";
import type { QuestionAnswer, QuestionSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { visible } from "../../core/visible.ts";
import type { ToolContext } from "../../tool/tool.ts";

type AskedQuestion = MessageInitShape<typeof QuestionSchema>;
type Fields = Readonly<Record<string, Field>>;

/** A field of the form that a server sends: a text, a number, a boolean or a choice. */
interface Field {
  type?: string;
  title?: string;
  description?: string;
  enum?: readonly string[];
  enumNames?: readonly string[];
  oneOf?: readonly Titled[];
  anyOf?: readonly Titled[];
  items?: Field;
}

type Titled = { const: string; title?: string };

/** Asks a person what a server wants to know. A person who refuses declines; nothing is ever accepted without one. */
export async function askPerson(
  server: string,
  request: ElicitRequest["params"],
  { question }: Pick<ToolContext, "question">,
): Promise<ElicitResult> {
  const about = `The MCP server ${server} asks: ${cut(visible(request.message), maxTextLength)}`;
  if (request.mode === "url") {
    const opened = "I have opened it";
    const answers = await question([choice(`${about}\nIt wants you to open ${visible(request.url)}`, [opened])]);
    return { action: answers?.[0]?.values.includes(opened) ? "accept" : "decline" };
  }
  const fields = Object.entries((request.requestedSchema.properties ?? {}) as Fields);
  if (fields.length > maxFields) return { action: "cancel" };
  if (fields.length === 0) {
    const answers = await question([choice(about, ["yes", "no"])]);
    return answers?.[0]?.values.includes("yes") ? { action: "accept", content: {} } : { action: "decline" };
  }
  const answers: QuestionAnswer[] = [];
  for (let at = 0; at < fields.length; at += maxQuestions) {
    const page = fields.slice(at, at + maxQuestions).map(([name, field]) => questionOf(about, name, field));
    const given = await question(page);
    if (given === undefined) return { action: "decline" };
    answers.push(...given);
  }
  const content: NonNullable<ElicitResult["content"]> = {};
  for (const [index, [name, field]] of fields.entries()) {
    const value = answeredValue(field, answers[index]?.values ?? []);
    if (value !== undefined) content[name] = value;
  }
  const missing = (request.requestedSchema.required ?? []).some((name) => !Object.hasOwn(content, name));
  return missing ? { action: "decline" } : { action: "accept", content };
}

function choice(question: string, labels: readonly string[]): AskedQuestion {
  return { question, options: labels.map((label) => ({ label })), custom: false };
}

/** Makes the question of one field. */
function questionOf(about: string, name: string, field: Field): AskedQuestion {
  const { title = name, description = "", type } = field;
  const text = `${about}\n${cut(visible([title, description].filter(Boolean).join(": ")), maxTextLength)}`;
  const choices = type === "boolean" ? yesOrNo : choicesOf(type === "array" ? (field.items ?? {}) : field);
  return {
    ...choice(
      text,
      choices.map(({ label }) => label),
    ),
    header: cut(visible(title), maxHeaderLength),
    multiple: type === "array",
    custom: choices.length === 0,
  };
}

interface Choice {
  label: string;
  value: string | boolean;
}

const yesOrNo: readonly Choice[] = [
  { label: "yes", value: true },
  { label: "no", value: false },
];

/** Lists the values of a field that has a fixed set of them, each with what the person sees. */
function choicesOf({ enum: values = [], enumNames = [], oneOf, anyOf }: Field): Choice[] {
  const titled = oneOf ?? anyOf;
  const all = titled
    ? titled.map(({ const: value, title = value }) => ({ value, label: title }))
    : values.map((value, index) => ({ value, label: enumNames[index] ?? value }));
  return all.map(({ value, label }) => ({ value, label: cut(visible(label), maxLabelLength) }));
}

/** Reads a person's answer as a value of the field; undefined if there is none that fits. */
function answeredValue(field: Field, given: readonly string[]): string | number | boolean | string[] | undefined {
  const { type } = field;
  if (type === "array") {
    const chosen = choicesOf(field.items ?? {}).filter(({ label }) => given.includes(label));
    return chosen.map(({ value }) => String(value));
  }
  const [text] = given;
  if (text === undefined) return undefined;
  if (type === "boolean") return yesOrNo.find(({ label }) => label === text)?.value;
  const choices = choicesOf(field);
  if (choices.length > 0) return choices.find(({ label }) => label === text)?.value;
  if (type !== "number" && type !== "integer") return text;
  const number = Number(text);
  return Number.isFinite(number) && (type === "number" || Number.isInteger(number)) ? number : undefined;
}

const cut = (text: string, length: number) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);
const maxFields = 50;
/** Questions of one permission request. */
const maxQuestions = 10;
const maxTextLength = 900;
const maxHeaderLength = 30;
const maxLabelLength = 100;
