import type { Source, SourceService } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { pageByKey } from "./paging.ts";
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
    async listSources(request) {
      const keyOf = ({ kind, workspace, name }: Source) => `${kind} ${workspace} ${name}`;
      const { page, nextPageToken } = pageByKey(await sources.list(), keyOf, request);
      return { sources: page, nextPageToken };
    },
    async acceptSource({ name, digest }, context) {
      const { id } = await approverOf(domain, context);
      return { source: await sources.accept(name, digest, id) };
    },
  };
}
