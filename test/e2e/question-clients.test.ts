import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { toolgate } from "../cli/toolgate.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();
const form = [
  {
    question: "Which database?",
    header: "Database",
    options: [{ label: "SQLite" }, { label: "Redis" }],
    custom: false,
  },
  { question: "Which ports?", header: "Ports", options: [{ label: "80" }, { label: "443" }], multiple: true },
  { question: "Anything else?" },
];

/** Asks questions, and returns the ID of the request. */
async function ask(input: JsonObject = { questions: form }) {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const stream = read(agent.tools.executeTool({ sessionId, callId: randomUUID(), tool: "question", input }));
  const { id } = await stream.until("permissionAsked");
  return { id, sessionId, stream };
}

/** The answers with which a call ended. */
async function answersOf({ stream }: Awaited<ReturnType<typeof ask>>) {
  const { state } = await stream.end();
  return state.case === "completed" ? state.value.metadata?.answers : state.value;
}

const environment = () => ({
  TOOLGATE_URL: service.url,
  TOOLGATE_TOKEN: "approver-token-for-tests",
  XDG_CONFIG_HOME: service.data,
});
const command = (...args: string[]) => toolgate(args, environment());

describe("toolgate reply", () => {
  test("answers each question by number, label or in own words", async () => {
    const asked = await ask();
    const { stdout } = await command("asks");
    expect(stdout).toContain("Database  Which database?\n     1 SQLite\n     2 Redis\n    choose one\n");
    expect(stdout).toContain("choose one or several, or write an answer");
    expect(stdout).toContain(`toolgate reply ${asked.id} --answer ANSWER --answer ANSWER --answer ANSWER --session`);
    const replied = await command("reply", asked.id, "--answer", "2", "-a", "443, 8080", "--answer", "");
    expect(replied).toMatchObject({ code: 0 });
    expect(replied.stderr).toContain("✓ answered: Redis; 443, 8080; no answer");
    expect(await answersOf(asked)).toEqual([["Redis"], ["443", "8080"], []]);
  });

  test.each([
    [["once"], "asks 3 (Database, Ports, Question 3), and 0 came"],
    [[], "no answer is given"],
    [["--answer", "1"], "and 1 came"],
    [["--answer", "MySQL", "-a", "", "-a", ""], '--answer 1 (Database): "MySQL" is none of 1 SQLite, 2 Redis'],
    [["always", "--answer", "1"], "--answer is only for once"],
  ])("refuses %j and names the reason; the question stays open", async (words, message) => {
    const asked = await ask();
    const refused = await command("reply", asked.id, ...words);
    expect(refused.code).toBe(2);
    expect(refused.stderr).toContain(message);
    expect(await command("reply", asked.id, "reject", "-m", "Later.")).toMatchObject({ code: 0 });
    expect(await answersOf(asked)).toMatchObject({ error: "The user dismissed this question. Their feedback: Later." });
  });

  test("without answers that fit together it shows the service's reason", async () => {
    const asked = await ask();
    const refused = await command("reply", asked.id, "-a", "", "-a", "", "-a", "");
    expect(refused).toMatchObject({ code: 2, stderr: expect.stringContaining("[INVALID_ANSWERS]") });
    await command("reply", asked.id, "-a", "1", "-a", "", "-a", "");
    expect(await answersOf(asked)).toEqual([["SQLite"], [], []]);
  });
});
