import type { DescMessage, Message } from "@bufbuild/protobuf";
import { violationsToProto } from "@bufbuild/protovalidate";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { createContractValidator } from "../../core/contract-validator.ts";
import { createNumberCheck } from "../../core/finite-numbers.ts";
import { RequestFailure } from "./request-failure.ts";

/** Refuses a request that breaks a validation rule of the contract. */
export type CheckMessage = (schema: DescMessage, message: Message) => void;

/** Creates the check. */
export function createMessageCheck(): CheckMessage {
  const validator = createContractValidator();
  const findUnwritable = createNumberCheck();
  return (schema, message) => {
    const path = findUnwritable(schema, message);
    if (path !== undefined) {
      const fact = `${path} is a number that JSON cannot hold, such as 1e400; send a smaller one, or a string`;
      throw new RequestFailure("invalid_argument", fact, {
        reason: ErrorReason.INVALID_MESSAGE,
        metadata: { field: path },
      });
    }
    const { error, violations = [] } = validator.validate(schema, message);
    if (error === undefined) return;
    const [value, desc] = violationsToProto(violations);
    const [first] = value.violations;
    const field = (first?.field?.elements ?? []).map(({ fieldName }) => fieldName).join(".");
    throw new RequestFailure("invalid_argument", error.message, {
      reason: ErrorReason.INVALID_MESSAGE,
      metadata: field === "" ? {} : { field },
      details: [{ desc, value }],
    });
  };
}
