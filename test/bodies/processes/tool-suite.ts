import { create, fromJson, type JsonObject } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { QuestionAnswerSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  WorkerEndedCallSchema,
  WorkerEndedCallsSchema,
  WorkerFailure,
  WorkerQuestionAnswersSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { type EndedBody, outputOf, type Runtime, type StartedProcess, startProcess } from "./driver.ts";

const files = {
  "tool/forms.ts": `
    import { tool, Tool } from "@opencode-ai/plugin";
    import z from "zod";
    export default tool({
      description: "Greets",
      args: { name: tool.schema.string().default("you") },
      async execute({ name }, ctx) { return \`Hello \${name}, says \${ctx.agent} in \${ctx.directory}.\`; },
    });
    export const plain = Tool.define({
      description: "Shouts",
      args: { text: { type: "string" } },
      execute: async ({ text }) => String(text).toUpperCase(),
    });
    export const agent = Tool.define("agent_tool", async (ctx) => ({
      description: \`For \${ctx?.agent?.name ?? "any"}\`,
      parameters: z.object({}),
      async execute() { return { title: "t", output: \`made for \${ctx?.agent?.name}\`, metadata: { deep: { n: 1 } } }; },
    }));
    export const none = 42;
    // As in opencode's page of custom tools.
    export const sum = tool({ description: "Adds", args: { a: tool.schema.number(), b: tool.schema.number() }, async execute(args) { return args.a + args.b; } });
    export const value = tool({ description: "Returns a value", args: { of: tool.schema.string() }, async execute({ of }) {
      const loop: Record<string, unknown> = {};
      loop.loop = loop;
      return { yes: true, list: [1, "a"], object: { a: { b: 1 }, output: 3 }, big: 10n, null: null, loop, none: undefined, call: () => 1 }[of];
    } });
  `,
  "tool/asks.ts": `
    import { tool } from "@opencode-ai/plugin";
    export const ask = tool({ description: "", args: {}, async execute(_args, ctx) {
      await ctx.ask({ permission: "bash", patterns: ["git log"], always: ["git *"], metadata: { n: 1 } });
      ctx.metadata({ title: "asked", progress: 50 });
      return "allowed";
    } });
    export const fail = tool({ description: "", args: {}, async execute() { throw new Error("no luck"); } });
    export const wait = tool({ description: "", args: {}, async execute(_args, ctx) {
      ctx.metadata({ title: "waits" });
      await new Promise((_, reject) => ctx.abort.addEventListener("abort", () => reject(ctx.abort.reason)));
    } });
    export const deaf = tool({ description: "", args: {}, execute(_args, ctx) {
      ctx.metadata({ title: "waits" });
      return new Promise(() => {});
    } });
    export const picture = tool({ description: "", args: {}, async execute() {
      return { output: "x".repeat(600_000), attachments: [{ mime: "image/png", url: "data:image/png;base64,aGk=", filename: "a.png" }] };
    } });
  `,
  "tool/own.ts": `
    import { defineTool, ToolFailure, z } from "toolgate/plugin";
    export const planned = defineTool({
      description: "Plans", input: z.object({ file: z.string() }), permissions: ["read"], readOnly: true, version: "3",
      timeoutMs: 5_000, providers: ["acme"], keep: { end: "tail", lines: 10 },
      async plan({ file }, { workspace }) {
        const path = await workspace.resolve(file);
        return { title: \`read \${path.pattern}\`, asks: path.asks("read"), binds: [path], path };
      },
      async execute(_input, { plan: { path } }) {
        using file = path.open();
        if (!file) throw new ToolFailure("There is none.", { hadNoEffects: true });
        return { output: await file.text() };
      },
    });
    export const words = defineTool({
      description: "Counts", input: z.object({ text: z.string().refine((text) => text !== "no", "not no") }),
      output: z.object({ words: z.int() }), permissions: [],
      plan: () => ({ title: "words", asks: [] }),
      execute: ({ text }) => ({ words: text === "bad" ? 0.5 : text.split(" ").length }),
      toModelOutput: ({ output }) => [{ type: "text", text: \`\${output.words} words\` }],
    });
    export const rich = defineTool({
      description: "", input: z.object({}),
      async execute(_input, ctx) {
        await ctx.output(Buffer.from("one "));
        const before = await ctx.state.get("n");
        await ctx.state.set("n", 2);
        const [child] = await ctx.calls([{ tool: "echo", input: { text: "hi" } }], { atomic: false });
        const [answer] = await ctx.question([{ question: "Which?" }]) ?? [];
        await ctx.output(Buffer.from("two"));
        return { title: ctx.workspace.name, note: "n", metadata: { before, text: child?.text, values: answer?.values, root: ctx.rootSessionId } };
      },
    });
    export const inside = defineTool({ description: "", input: z.object({}), execute: (_input, ctx) => ctx.outputs.read("out_1", 0, 1) });
    export const defect = defineTool({ description: "", input: z.object({}), execute() { throw new TypeError("oops"); } });
  `,
  "note.txt": "a note",
};

/** Tests of forms, bodies and plans under one runtime. */
export function describeTools(runtime: Runtime): void {
  let started: StartedProcess;
  beforeAll(async () => {
    started = await startProcess({ runtime, files, load: ["tool/forms.ts", "tool/asks.ts", "tool/own.ts"] });
  });
  afterAll(() => started[Symbol.asyncDispose]());

  const toolNamed = (name: string) => started.hello.tools.find((tool) => tool.name === name);
  const failureOf = ({ result }: EndedBody) => (result.case === "failed" ? result.value : undefined);

  describe("hello", () => {
    test("names tools by file and export, or by their id", () => {
      expect(started.hello.problems).toEqual([]);
      const names = started.hello.tools.map(({ name }) => name);
      expect(names.toSorted()).toEqual(
        [
          "agent_tool",
          "asks_ask",
          "asks_deaf",
          "asks_fail",
          "asks_picture",
          "asks_wait",
          "forms",
          "forms_plain",
          "forms_sum",
          "forms_value",
        ].concat(["own_defect", "own_inside", "own_planned", "own_rich", "own_words"]),
      );
    });
  });

  test("a tool of opencode returns a number, a boolean, an array or an object: the model reads it as JSON", async () => {
    expect(outputOf(await started.call("forms_sum", { a: 2, b: 3 }))).toBe("5");
    const shown = { yes: "true", list: '[1,"a"]', object: '{"a":{"b":1},"output":3}', big: "10", null: "null" };
    for (const [of, text] of Object.entries(shown))
      expect(outputOf(await started.call("forms_value", { of }))).toBe(text);
    for (const [of, what] of Object.entries({ loop: "a object", none: "nothing", call: "a function" }))
      expect(failureOf(await started.call("forms_value", { of }))?.message).toContain(`forms_value returned ${what}`);
  });

  describe("a tool is declared", () => {
    test("in opencode's forms: without plan, and its approval covers the body", () => {
      expect(toolNamed("forms")).toMatchObject({
        description: "Greets",
        ...{ plans: false, coversBody: true, inits: false, keep: { end: "both" } },
        inputSchema: { type: "object", properties: { name: { type: "string", default: "you" } } },
        file: `${started.directory}/tool/forms.ts`,
      });
      expect(toolNamed("forms_plain")).toMatchObject({ inputSchema: { required: ["text"] } });
      expect(toolNamed("agent_tool")).toMatchObject({ description: "For any", inits: true });
    });

    test("of defineTool: with everything that it names", () => {
      expect(toolNamed("own_planned")).toMatchObject({
        ...{ plans: true, coversBody: false, version: "3", timeoutMs: 5_000, providers: ["acme"] },
        asks: { names: ["read"] },
        annotations: { readOnly: true, idempotent: false },
        keep: { end: "tail", lines: 10 },
      });
      expect(toolNamed("own_words")).toMatchObject({ asks: { names: [] }, outputSchema: { type: "object" } });
      expect(toolNamed("own_rich")).toMatchObject({ plans: false, coversBody: false });
      expect(toolNamed("own_rich")?.asks).toBeUndefined();
    });

    test("with a digest of its file, the same for the tools of one file alone", () => {
      expect(toolNamed("forms")?.source).toMatch(/^[0-9a-f]{32}$/);
      expect(toolNamed("forms")?.source).toBe(toolNamed("forms_plain")?.source);
      expect(toolNamed("forms")?.source).not.toBe(toolNamed("own_rich")?.source);
    });
  });

  describe("a body", () => {
    test("gets its input with defaults, and opencode's context", async () => {
      expect(outputOf(await started.call("forms", {}))).toBe(`Hello you, says build in ${started.directory}.`);
      expect(outputOf(await started.call("forms_plain", { text: "hey" }))).toBe("HEY");
    });

    test("of a tool that init makes runs as it is for the agent", async () => {
      started.send({ case: "init", value: { initId: "i1", tool: "agent_tool", agent: "plan" } });
      const inited = await started.next((message) => (message.case === "inited" ? message.value : undefined));
      expect(inited).toMatchObject({ initId: "i1", description: "For plan", problem: "" });
      const { result } = await started.call("agent_tool", {}, { agent: "plan" });
      expect(result.value).toMatchObject({ title: "t", output: "made for plan", metadata: { deep: { n: 1 } } });
    });

    test("asks, and reports other keys of metadata as metadata", async () => {
      const ended = await started.call("asks_ask", {});
      expect(ended.requests).toMatchObject([
        { case: "ask", value: { permission: "bash", patterns: ["git log"], always: ["git *"], metadata: { n: 1 } } },
      ]);
      expect(ended.progress).toEqual([{ title: "asked", metadata: { progress: 50 } }]);
      expect(outputOf(ended)).toBe("allowed");
    });

    test("whose request cannot be fulfilled fails with the reason", async () => {
      const ended = await started.call("asks_ask", {}, { answer: () => ({ case: "problem", value: "no such thing" }) });
      expect(failureOf(ended)).toMatchObject({ kind: WorkerFailure.EXPECTED, message: "no such thing" });
    });

    test("that throws fails: as expected in opencode's forms, otherwise as a defect", async () => {
      expect(failureOf(await started.call("asks_fail", {}))).toMatchObject({
        kind: WorkerFailure.EXPECTED,
        message: "no luck",
      });
      const defect = failureOf(await started.call("own_defect", {}));
      expect(defect?.kind).toBe(WorkerFailure.DEFECT);
      expect(defect?.message).toMatch(/TypeError: oops\n.*own\.ts:\d+/s);
    });

    test("stops on cancel; one that ignores its signal is abandoned", async () => {
      for (const tool of ["asks_wait", "asks_deaf"]) {
        const ended = await started.call(tool, {}, { isCancelled: true });
        expect(failureOf(ended)).toMatchObject({ kind: WorkerFailure.STOPPED });
      }
    });

    test("sends long output and files in pieces", async () => {
      const { result, blobs } = await started.call("asks_picture", {});
      expect(blobs.get(0)?.length).toBe(600_000);
      expect(blobs.get(1)?.toString()).toBe("hi");
      expect(result.value).toMatchObject({ attachments: [{ blob: 1, mime: "image/png", filename: "a.png" }] });
      expect(result.case === "completed" && result.value.output).toBeUndefined();
    });

    test("of defineTool writes output, stores values, makes calls and asks questions", async () => {
      const ended = await started.call(
        "own_rich",
        {},
        {
          answer(request) {
            if (request.case === "getState") return { case: "state", value: fromJson(ValueSchema, 1) };
            if (request.case === "calls") {
              const call = create(WorkerEndedCallSchema, { callId: "c", completed: true, text: "hi" });
              return { case: "calls", value: create(WorkerEndedCallsSchema, { calls: [call] }) };
            }
            if (request.case !== "questions") return { case: undefined };
            const answers = [create(QuestionAnswerSchema, { values: ["this"] })];
            return { case: "answers", value: create(WorkerQuestionAnswersSchema, { answers }) };
          },
        },
      );
      expect(outputOf(ended)).toBe("one two");
      expect(ended.result.value).toMatchObject({
        ...{ title: "default", note: "n" },
        metadata: { before: 1, text: "hi", values: ["this"], root: "ses_1" },
      });
      expect(ended.requests.map((request) => request.case)).toEqual(["getState", "setState", "calls", "questions"]);
    });

    test("that uses what only the service has fails by name", async () => {
      expect(failureOf(await started.call("own_inside", {}))?.message).toContain("ctx.outputs is not available");
    });
  });

  describe("a plan", () => {
    const plan = async (tool: string, input: JsonObject, callId: string) => {
      const call = { tool, input, callId, directory: started.directory, workspace: "default", agent: "build" };
      started.send({ case: "plan", value: { planId: callId, call } });
      return await started.next((message) =>
        message.case === "planned" && message.value.planId === callId ? message.value : undefined,
      );
    };

    test("has title, asks and files, and what was planned runs", async () => {
      const planned = await plan("own_planned", { file: "note.txt" }, "p1");
      expect(planned).toMatchObject({
        ...{ title: "read note.txt", problem: "", binds: [`${started.directory}/note.txt`] },
        asks: [{ permission: "read", patterns: ["note.txt"] }],
      });
      const ended = await started.call("own_planned", { file: "note.txt" }, { callId: "p1", detail: planned.detail });
      expect(outputOf(ended)).toBe("a note");
    });

    test("that differs from the approved one is not run", async () => {
      const { detail } = await plan("own_planned", { file: "note.txt" }, "p2");
      const ended = await started.call("own_planned", { file: "other.txt" }, { callId: "p3", detail });
      expect(failureOf(ended)).toMatchObject({ kind: WorkerFailure.CHANGED, noEffects: true });
    });

    test("refuses input that breaks a check which JSON Schema cannot express", async () => {
      expect((await plan("own_words", { text: "no" }, "p4")).problem).toContain("not no");
      const ended = await started.call("own_words", { text: "no" });
      expect(failureOf(ended)).toMatchObject({ kind: WorkerFailure.INVALID_INPUT, noEffects: true });
    });

    test("is not needed for a structured result, which must fit its schema", async () => {
      const { result } = await started.call("own_words", { text: "to be" });
      expect(result.value).toMatchObject({ structured: fromJson(ValueSchema, { words: 2 }), output: "2 words" });
      expect(failureOf(await started.call("own_words", { text: "bad" }))?.kind).toBe(WorkerFailure.INVALID_OUTPUT);
    });
  });
}
