import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { QuestionSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { parseAnswer } from "../../src/cli/question/parse-answer.ts";

const options = ["80", "443", "Yes, all", "1"].map((label) => ({ label }));
const several = create(QuestionSchema, { options, multiple: true, custom: true });
const one = { ...several, multiple: false };
const fixed = { ...one, custom: false };

test.each([
  [one, "2", ["443"]],
  [one, "80", ["80"]],
  // A label is meant before a number.
  [one, "1", ["1"]],
  [one, "yes, ALL", ["Yes, all"]],
  [one, "80, 443", ["80, 443"]],
  [one, "=2", ["2"]],
  [one, " ", []],
  [one, "=", []],
  [several, "Yes, all", ["Yes, all"]],
  [several, "2, 80, 2", ["443", "80"]],
  [several, "80, 8080, udp", ["80", "8080, udp"]],
  [several, "not, any", ["not, any"]],
  [create(QuestionSchema, { custom: true }), "1, 2", ["1, 2"]],
])("%# %s", (question, text, values) => {
  expect(parseAnswer(question, text)).toEqual({ values });
});

test.each([
  [fixed, "8080"],
  [fixed, "=80"],
  [{ ...several, custom: false }, "80, 8080"],
])("%# %s is no answer, and the options are named", (question, text) => {
  expect(parseAnswer(question, text)).toEqual({
    problem: expect.stringContaining("is none of 1 80, 2 443, 3 Yes, all, 4 1"),
  });
});
