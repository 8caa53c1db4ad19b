import type { Source, SourceService } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import type { ServiceFunctions } from "./rpc.ts";
import { approverOf, type SenderDomain } from "./sender.ts";

/** Domain that SourceService works on. */
export interface SourceServiceDomain extends SenderDomain {
  sources: {
    list(): Promise<Source[]>;
    /** Accepts what a source offers, if it is what the digest names. */
    accept(name: string, digest: string, by: string): Promise<Source>;
  };
}

/** Returns the functions of SourceService. */
export function sourceService(domain: SourceServiceDomain): ServiceFunctions<typeof SourceService> {
  const { sources } = domain;
  return {
    listSources: async () => ({ sources: await sources.list() }),
    async acceptSource({ name, digest }, context) {
      const { id } = await approverOf(domain, context);
      return { source: await sources.accept(name, digest, id) };
    },
  };
}
