import { randomUUID } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import { describe, expect, onTestFinished, test } from "vitest";
import { saveLogin } from "../../src/client/stored-logins.ts";
import { startAtTerminal, toolgate } from "../cli/toolgate.ts";
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

test("toolgate plan shows the questions that a call would ask", async () => {
  const { stdout } = await toolgate(["plan", "question", JSON.stringify({ questions: form })], {
    ...environment(),
    TOOLGATE_TOKEN: "caller-token-for-tests",
  });
  expect(stdout).toContain("Which database? (+2)\n  Database  Which database?\n     1 SQLite\n");
});

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

/** Starts a command at a terminal; returns what types into it once a text is on the screen. */
function atTerminal(args: readonly string[], env: Record<string, string>) {
  const running = startAtTerminal(args, env);
  onTestFinished(() => void running.child.kill());
  const type = async (keys: string, ...texts: string[]) => {
    await running.sees(...texts);
    running.child.stdin?.write(keys);
  };
  return { running, type };
}

describe("the inbox at a terminal", () => {
  test("answers the questions of a card one after the other", async () => {
    const { type } = atTerminal(["inbox"], environment());
    const asked = await ask();
    await type("o", "\x1b[1mo\x1b[22m answer");
    await type("3\r", "1 of 3", "Which database?", "→");
    await type("\x7f2", '"3" is none of 1 SQLite, 2 Redis');
    await type("\r", "Redis");
    await type("1, 8080\r", "2 of 3", "Which ports?");
    await type("\r", "3 of 3", "Anything else?");
    expect(await answersOf(asked)).toEqual([["Redis"], ["80", "8080"], []]);
  });

  test("no single key answers a question; r dismisses it", async () => {
    const { type } = atTerminal(["inbox"], environment());
    const asked = await ask({ question: "Go on?", options: ["Yes", "No"] });
    await type("a", "\x1b[1mo\x1b[22m answer", "\x1b[1mr\x1b[22m dismiss");
    await type("e", "has no offer to save");
    await type("o\r", "a question is answered, not edited");
    await type("\x1b", "answer at least one question");
    await type("rLater.\r", "answer at least one question", "\x1b[1mr\x1b[22m dismiss");
    expect(await answersOf(asked)).toMatchObject({ error: "The user dismissed this question. Their feedback: Later." });
  });
});

describe("toolgate call at a terminal with a sign-in", () => {
  const signedIn = () => {
    const env = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests", XDG_CONFIG_HOME: service.data };
    const login = { storeId: "", id: "approver", token: "approver-token-for-tests", expires: 0 };
    saveLogin(service.url, login, env);
    return env;
  };

  test("prompts for each answer, and sends several after a confirmation", async () => {
    const call = atTerminal(["call", "question", JSON.stringify({ questions: form })], signedIn());
    await call.type("MySQL\r", "Database \x1b[33m›");
    await call.type("2\r", '"MySQL" is none of 1 SQLite, 2 Redis', "›");
    await call.type("80, 443\r", "Ports \x1b[33m›");
    await call.type("\r", "Question 3 \x1b[33m›");
    await call.type("y\r", "send: Redis; 80, 443; no answer?");
    const { code, stdout } = await call.running.finished;
    expect(code).toBe(0);
    expect(stdout).toContain('"Which ports?"="80, 443"');
  });

  test("dismisses a question, and sends no pasted answer before it is confirmed", async () => {
    const call = atTerminal(["call", "question", '{"question": "Go on?", "options": ["Yes", "No"]}'], signedIn());
    await call.type("\x1b[200~Yes\r\x1b[201~", "Question 1 \x1b[33m›");
    await call.type("n\r", "send: Yes?");
    await call.type("/dismiss Not now.\r", "y or n", "Question 1 \x1b[33m›");
    const { code, stdout } = await call.running.finished;
    expect(code).toBe(3);
    expect(stdout).toContain("The user dismissed this question. Their feedback: Not now.");
  });
});
