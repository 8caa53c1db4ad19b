import type { KnownBytes } from "../../core/encode-message.ts";
import type { Logger } from "../../core/logger.ts";
import type { AccessGate } from "../api/access.ts";
import type { CheckMessage } from "../api/check-message.ts";
import type { EdgeLimits } from "../api/edge-context.ts";
import type { Failures } from "../api/failures.ts";
import type { Rpc } from "../api/rpc.ts";
import type { ByteBudget } from "../http/byte-budget.ts";
import type { JsonOptions, ResponseCompression } from "./wire.ts";

/** Options of both ways in which rpcs are served. */
export interface RpcOptions {
  rpcs: readonly Rpc[];
  gate: AccessGate;
  checkMessage: CheckMessage;
  failures: Failures;
  limits: EdgeLimits;
  /** Binary forms that need not be encoded again. */
  known: KnownBytes;
  compression: ResponseCompression;
  jsonOptions: JsonOptions;
  /** Budget of the bytes of requests that have not arrived whole. */
  budget: ByteBudget;
  /** Aborts every request when it is aborted, with the same reason. */
  shutdownSignal: AbortSignal;
  log: Logger;
}
