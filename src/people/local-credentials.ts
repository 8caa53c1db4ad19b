import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  CreateTokenRequestSchema,
  type Credential as CredentialRecord,
  CredentialSchema,
} from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { roleNames } from "../core/principal.ts";
import { workerRightsProblem } from "../core/worker-rights.ts";
import { type Credential, newCredential, newToken, recordOf, workerRights } from "./credential.ts";
import type { CredentialTable } from "./ports.ts";

/** Creates access to a table for its operator, who may give every role. A running service reads the changes. */
export function createLocalCredentials(table: CredentialTable) {
  return {
    list: () => table.current().map(shownToOperator),
    async create(wanted: MessageInitShape<typeof CreateTokenRequestSchema>) {
      const { roles, agents, workspaces, label, expires, worker } = create(CreateTokenRequestSchema, wanted);
      const token = newToken();
      const rights = {
        roles: roleNames.filter((role) => roles.includes(role)),
        agents: orAll(agents),
        workspaces: orAll(workspaces),
        ...(worker && { worker: workerRights(worker) }),
      };
      const problem = workerRightsProblem(rights);
      if (problem !== undefined) throw new Error(problem.message);
      const named = label || rights.roles.join("-");
      const credential = newCredential(token, rights, { label: named, created: Date.now(), expires });
      await table.add(credential);
      return { token, credential: shownToOperator(credential) };
    },
    async revoke(id: string) {
      const revoked = await table.revoke(id, Date.now());
      if (revoked === undefined) throw new Error(`there is no credential "${id}"`);
      return shownToOperator(revoked);
    },
  };
}

/** Returns a credential as the contract has it, without the method, which only a service reports. */
const shownToOperator = (credential: Credential): CredentialRecord =>
  create(CredentialSchema, { ...recordOf(credential), method: AnswerMethod.UNSPECIFIED });

const orAll = (names: readonly string[]) => (names.length === 0 ? ["*"] : names);
