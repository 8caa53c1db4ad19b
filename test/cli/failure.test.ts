import { Code, ConnectError } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { ErrorReasonSchema } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { commandFailure } from "../../src/cli/failure/failure.ts";
import { refused } from "./fake-server.ts";

const server = {
  url: "http://127.0.0.1:7420",
  tokenSource: "the token given by --token was sent",
  tokenAdvice: "name the right one with --token-file FILE",
};
const reasons = ErrorReasonSchema.values.filter(({ number }) => number !== 0).map(({ localName }) => localName);
const codes = Object.values(Code).filter((code) => typeof code === "number");

describe("what to do next is said", () => {
  test.each(reasons)("after %s", (reason) => {
    expect(commandFailure(refused(Code.FailedPrecondition, reason, "no"), server).next).not.toBe("");
  });

  test.each(codes.map((code) => [Code[code], code] as const))("after the code %s without a reason", (_name, code) => {
    expect(commandFailure(new ConnectError("no", code), server).next).not.toBe("");
  });

  test("when the port is taken", () => {
    const error = Object.assign(new Error("listen EADDRINUSE"), { code: "EADDRINUSE" });
    expect(commandFailure(error).next).toContain("--listen");
  });

  test("after an unexpected error", () => {
    expect(commandFailure(new TypeError("x is undefined")).next).toContain("log");
  });
});
