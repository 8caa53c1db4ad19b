import type { OperatorService } from "../../../gen/opencode/tool/v1/operator_service_pb.ts";
import type { ServiceFunctions } from "./rpc.ts";

/** Domain that OperatorService works on. */
export interface OperatorServiceDomain {
  /** Yields the bytes of a backup. */
  backUp(): AsyncIterable<Uint8Array>;
}

/** Returns the functions of OperatorService. */
export function operatorService({ backUp }: OperatorServiceDomain): ServiceFunctions<typeof OperatorService> {
  return {
    async *backup() {
      for await (const data of backUp()) yield { data };
    },
  };
}
