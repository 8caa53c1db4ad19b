import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import {
  AnswerMethod,
  PermissionAction,
  PermissionDecisionSchema,
  PermissionLayer,
  PermissionOutcome,
  PermissionReason,
  PermissionSettledSchema,
  PersonSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionRequestSchema,
  ToolEffects,
  ToolErrorReason,
  ToolPartSchema,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { callKeyOf, repetitionWords } from "../../src/view/asks.ts";
import { decisionWords } from "../../src/view/decisions.ts";
import {
  effectsWords,
  errorReasonWords,
  failedCommandWords,
  isApproval,
  outcomeWords,
} from "../../src/view/outcomes.ts";
import { countOf, durationOf, momentOf, sizeOf, timeLeft } from "../../src/view/quantities.ts";
import { capitalized, enumWord, shellCommand } from "../../src/view/words.ts";

const filter = (text: string) => text.replaceAll("\u202e", "?");

describe("quantities", () => {
  test.each([
    [-5, "0 ms"],
    [999, "999 ms"],
    [1_234, "1.2 s"],
    [59_000, "59 s"],
    [59_600, "1m 00s"],
    [65_000, "1m 05s"],
    [3_599_600, "1h 00m"],
    [3_660_000, "1h 01m"],
  ])("%i ms is %s", (ms, words) => {
    expect(durationOf(ms)).toBe(words);
  });

  test.each([
    [0, "time is up"],
    [65_000, "1:05 left"],
    [7_199_000, "119:59 left"],
    [7_200_000, "2 h left"],
  ])("with %i ms to answer: %s", (ms, words) => {
    expect(timeLeft(ms)).toBe(words);
  });

  test("sizes, counts and moments", () => {
    expect([12, 2_048, 5_242_880].map(sizeOf)).toEqual(["12 bytes", "2.0 KiB", "5.0 MiB"]);
    expect([countOf(0, "call"), countOf(1n, "call"), countOf(2n, "call")]).toEqual(["0 calls", "1 call", "2 calls"]);
    expect(momentOf(new Date(2026, 10, 22, 14, 5, 9).getTime())).toBe("2026-11-22 14:05:09");
  });
});

describe("outcomes", () => {
  test.each([
    ["ONCE", true, "approved once by alice"],
    ["ALWAYS", true, "approved always by alice"],
    ["EDITED", true, "edited by alice"],
    ["REJECT", false, "rejected by alice"],
    ["EXPIRED", false, "expired: no answer in time by alice"],
    ["WITHDRAWN", false, "withdrawn by alice"],
    ["DENIED", false, "denied: the service is unattended by alice"],
  ] as const)("%s is an approval: %s", (name, approval, words) => {
    const outcome = PermissionOutcome[name];
    expect(isApproval(outcome)).toBe(approval);
    expect(outcomeWords(create(PermissionSettledSchema, { outcome, by: "alice" }), filter)).toBe(words);
  });

  test("every outcome of the contract has words", () => {
    for (const outcome of Object.values(PermissionOutcome)) {
      if (outcome === PermissionOutcome.UNSPECIFIED) continue;
      expect(outcomeWords(create(PermissionSettledSchema, { outcome }), filter)).not.toBe("settled");
    }
  });

  test("names and advice pass the filter", () => {
    const settled = create(PermissionSettledSchema, {
      outcome: PermissionOutcome.REJECT,
      by: "a\u202eb",
      message: "use \u202e staging",
    });
    expect(outcomeWords(settled, filter)).toBe("rejected by a?b: use ? staging");
    const named = { ...settled, message: "", person: create(PersonSchema, { name: "Bob" }) };
    expect(outcomeWords({ ...named, method: AnswerMethod.SESSION }, filter)).toBe("rejected by Bob");
    expect(outcomeWords({ ...named, method: AnswerMethod.TOKEN }, filter)).toBe("rejected by Bob (with a token)");
  });
});

describe("decisions", () => {
  const rule = { permission: "bash", pattern: "git *", action: PermissionAction.DENY };

  test.each([
    [{ reasonCode: PermissionReason.NO_RULE, action: PermissionAction.ASK }, "No rule matches, so it needs approval."],
    [
      { reasonCode: PermissionReason.NO_RULE, action: PermissionAction.ALLOW },
      "No rule asks for approval or denies it.",
    ],
    [
      { reasonCode: PermissionReason.RULE, layer: PermissionLayer.CONFIG, rule },
      "The configuration says bash “git *” = deny.",
    ],
    [{ reasonCode: PermissionReason.PROTECTED, reason: "engine: a \u202e name" }, "Toolgate itself: a ? name."],
    [
      { reasonCode: PermissionReason.ALWAYS_ASKED, reason: "engine: ls runs outside: always asked" },
      "Toolgate asks for this each time: ls runs outside.",
    ],
  ])("%o", (decision, words) => {
    expect(decisionWords(create(PermissionDecisionSchema, decision), filter)).toBe(words);
  });
});

describe("calls and asks", () => {
  test("the reason and the effects of a failure", () => {
    expect(errorReasonWords(ToolErrorReason.EXECUTOR_LOST)).toBe("executor lost");
    expect(effectsWords(ToolEffects.NONE)).toBe("nothing was changed");
    expect(effectsWords(ToolEffects.UNKNOWN)).toBe("it may have changed something");
  });

  test("a third identical call in a row asks with its number, other asks have none", () => {
    const loop = { permission: "doom_loop", metadata: { repeats: 2 } };
    expect(repetitionWords(create(PermissionRequestSchema, loop))).toBe("the same call, 3 times in a row");
    expect(repetitionWords(create(PermissionRequestSchema, { permission: "bash" }))).toBe("");
  });

  test("asks of one call have one key", () => {
    const ask = (id: string, callId?: string) =>
      create(PermissionRequestSchema, { id, sessionId: "ses_1", ...(callId && { tool: { callId } }) });
    expect(callKeyOf(ask("per_1", "c1"))).toBe(callKeyOf(ask("per_2", "c1")));
    expect(callKeyOf(ask("per_1"))).not.toBe(callKeyOf(ask("per_2")));
  });
});

describe("words", () => {
  test("an enum value that this client does not know is a number", () => {
    expect(enumWord(ToolErrorReason, ToolErrorReason.INVALID_INPUT)).toBe("invalid input");
    expect(enumWord(ToolErrorReason, 9_999)).toBe("unknown (9999)");
  });

  test("a sentence begins with a capital letter", () => {
    expect([capitalized("rejected by alice"), capitalized("")]).toEqual(["Rejected by alice", ""]);
  });

  test("a command line quotes the words that a shell would change", () => {
    expect(shellCommand(["toolgate", "call", "bash", `{"command":"echo 'hi'; rm x"}`])).toBe(
      `toolgate call bash '{"command":"echo '\\''hi'\\''; rm x"}'`,
    );
  });
});

test.each([
  [{ exit: 0, signal: null }, ""],
  [{ exit: 3, signal: null }, "exit code 3"],
  [{ exit: null, signal: "SIGKILL" }, "ended by SIGKILL"],
  [{ exit: null }, "stopped before its end"],
  [{ exit: "way out" }, ""],
  [{}, ""],
])("the command of a completed call with the metadata %j failed by: %j", (metadata, words) => {
  const part = create(ToolPartSchema, { state: { case: "completed", value: { metadata } } });
  expect(failedCommandWords(part)).toBe(words);
});
