import { create } from "@bufbuild/protobuf";
import { type OperatorService, StopTargetSchema } from "../../../gen/opencode/tool/v1/operator_service_pb.ts";
import type { Calls } from "../../call/calls.ts";
import type { ServiceFunctions } from "./rpc.ts";

/** Domain that OperatorService works on. */
export interface OperatorServiceDomain {
  /** Yields the bytes of a backup. */
  backUp(): AsyncIterable<Uint8Array>;
  calls: Pick<Calls, "stop" | "stops" | "resume">;
}

/** Returns the functions of OperatorService. */
export function operatorService({ backUp, calls }: OperatorServiceDomain): ServiceFunctions<typeof OperatorService> {
  return {
    async *backup() {
      for await (const data of backUp()) yield { data };
    },
    stop: ({ target = noTarget, reason }, { principal }) => calls.stop(principal, { target, reason }),
    listStops: async () => ({ stops: calls.stops().toSorted((one, other) => one.time - other.time) }),
    resume: async ({ target = noTarget }, { principal }) => {
      const stop = await calls.resume(principal, target);
      return stop ? { stop } : {};
    },
  };
}

/** Never used: a request without a target is refused before. */
const noTarget = create(StopTargetSchema);
