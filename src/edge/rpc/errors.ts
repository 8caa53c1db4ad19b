import { Code, ConnectError } from "@connectrpc/connect";
import { codeToHttpStatus } from "@connectrpc/connect/protocol-connect";
import { ErrorInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { nameOfReason } from "../api/failures.ts";
import { deadlinePassed, RequestFailure, type Status, statusNumbers } from "../api/request-failure.ts";

/** Returns a failure as Connect sends it; its reason is the first detail. Only this function creates a `ConnectError`. */
export function toConnectError(failure: RequestFailure): ConnectError {
  const { status, message, reason, metadata, details } = failure;
  const info = {
    desc: ErrorInfoSchema,
    value: { reason: nameOfReason(reason), domain: "opencode.tool.v1", metadata },
  };
  const sent = reason === ErrorReason.UNSPECIFIED ? details : [info, ...details];
  return new ConnectError(message, statusNumbers[status], undefined, [...sent], failure);
}

/** Returns the HTTP status of a failure, as Connect maps its codes. */
export function httpStatusOf({ status }: RequestFailure): number {
  return codeToHttpStatus(statusNumbers[status]);
}

/** Classifies an error that Connect threw; undefined if its text is not for the client, or if it is no such error. */
export function connectFailure(error: unknown): RequestFailure | undefined {
  if (error instanceof ConnectError && error.cause instanceof RequestFailure) return error.cause;
  if (!(error instanceof ConnectError) || hiddenCodes.has(error.code)) return undefined;
  if (error.code === Code.DeadlineExceeded) return deadlinePassed();
  const status = statusByNumber.get(error.code);
  const reason = reasonsOfLibrary[status ?? "unknown"] ?? ErrorReason.UNSPECIFIED;
  return status && new RequestFailure(status, error.rawMessage, { reason, cause: error });
}

/** Reasons of the refusals that Connect makes by itself. */
const reasonsOfLibrary: Readonly<Partial<Record<Status, ErrorReason>>> = {
  invalid_argument: ErrorReason.INVALID_MESSAGE,
  unimplemented: ErrorReason.NOT_SERVED,
};

/** Codes of errors whose text is for the operator only. */
const hiddenCodes: ReadonlySet<Code> = new Set([Code.Internal, Code.Unknown]);

const isStatus = (name: string): name is Status => Object.hasOwn(statusNumbers, name);

const statusByNumber: ReadonlyMap<number, Status> = new Map(
  Object.keys(statusNumbers)
    .filter(isStatus)
    .map((status) => [statusNumbers[status], status]),
);
