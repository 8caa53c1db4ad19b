import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { RequesterSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { errorReasonWords } from "../../src/view/outcomes.ts";
import { requesterWords } from "../../src/view/requester.ts";

const words = (requester?: { kind: string; place?: string; subagent?: string }) =>
  requesterWords({ agent: "build", requester: requester && create(RequesterSchema, requester) }, (text) =>
    text.replaceAll("\u202e", "�"),
  );

test.each([
  [undefined, "build"],
  [{ kind: "claude" }, "Claude Code"],
  [{ kind: "claude", place: "/home/ann/shop", subagent: "reviewer" }, "Claude Code in ~/shop, reviewer"],
  [{ kind: "opencode", place: "/root" }, "opencode in ~"],
  [{ kind: "opencode", place: "/srv/shop" }, "opencode in /srv/shop"],
  [{ kind: "other-agent", place: "/rooted/x" }, "other-agent in /rooted/x"],
  [{ kind: "claude", place: "/a\u202eb", subagent: "c\u202ed" }, "Claude Code in /a�b, c�d"],
])("%j is shown as %s", (requester, expected) => {
  expect(words(requester)).toBe(expected);
});

test("an approved call without a report is called that", () => {
  expect(errorReasonWords(ToolErrorReason.NOT_REPORTED)).toBe("approved, outcome not reported");
});
