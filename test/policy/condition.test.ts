import { describe, expect, test } from "vitest";
import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ConditionError, type Facts, readCondition } from "../../src/policy/condition.ts";

const { DELETE, NETWORK, PACKAGES } = RiskKind;

test.each<[string, Facts, boolean | undefined]>([
  ["contained", { contained: true }, true],
  ["contained", { contained: "writes outside" }, false],
  ["contained", {}, undefined],
  ["!contained", { contained: "writes outside" }, true],
  ["!contained", {}, undefined],
  ["risk.only(['network'])", { risks: [NETWORK] }, true],
  ["risk.only(['network'])", { risks: [NETWORK, DELETE] }, false],
  ["risk.only([])", { risks: [] }, true],
  ["risk.only([])", {}, undefined],
  ["'delete' in risk", { risks: [DELETE] }, true],
  ["'delete' in risk", { risks: [PACKAGES] }, false],
  ["size(risk) <= 1", { risks: [DELETE] }, true],
  ["size(risk) > 1", { risks: [DELETE] }, false],
  ["size(risk) == 1 && contained", { risks: [DELETE], contained: true }, true],
  ["contained && 'delete' in risk", { risks: [NETWORK] }, false],
  ["contained || 'delete' in risk", { risks: [DELETE] }, true],
  ["contained || 'delete' in risk", { risks: [NETWORK] }, undefined],
  ["!(contained && 'network' in risk)", { contained: true, risks: [NETWORK] }, false],
  ["risk == 'network'", { risks: [NETWORK] }, undefined],
  ["size(risk) < 'network'", { risks: [NETWORK] }, undefined],
])("%s of %o is %s", (text, facts, expected) => {
  expect(readCondition(text).holds(facts)).toBe(expected);
});

describe("a condition is refused", () => {
  test.each([
    ["", "is empty; leave it out where the rule always matches"],
    ["contaned", "has the unknown name contaned; known are contained and risk"],
    ["constructor", "has the unknown name constructor; known are contained and risk"],
    ["contained &&", "ends too early"],
    ["(contained", "expects ) at its end"],
    ["contained contained", "does not end before contained"],
    ["risk.every(['network'])", "expects only([…]) after risk."],
    ["risk.only(['netwrok'])", "names the risk 'netwrok'; known are credentials, downloaded_code, delete"],
    ["contained; true", 'cannot be read from "; true" on'],
    [`contained${" || contained".repeat(40)}`, "has over 64 parts"],
    [`${"(".repeat(100)}contained${")".repeat(100)}`, "has over 64 parts"],
    [`${"!".repeat(900)}contained`, "has over 64 parts"],
    [`contained${" ".repeat(1_100)}`, "has over 1024 bytes"],
  ])("%s", (text, message) => {
    expect(() => readCondition(text)).toThrow(ConditionError);
    expect(() => readCondition(text)).toThrow(message);
  });
});
