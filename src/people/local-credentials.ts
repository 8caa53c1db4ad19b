import { roleNames } from "../core/principal.ts";
import { workerRightsProblem } from "../core/worker-rights.ts";
import { type Credential, type CredentialRights, newCredential, newToken } from "./credential.ts";
import type { CredentialTable } from "./ports.ts";

/** Creates access to a table for its operator, who may give every role. A running service reads the changes. */
export function createLocalCredentials(table: CredentialTable) {
  return {
    list: () => table.current(),
    async create({
      roles,
      label,
      expires,
      ...wanted
    }: Omit<CredentialRights, "roles"> & Pick<Credential, "label" | "expires"> & { roles: readonly string[] }) {
      const token = newToken();
      const rights = {
        roles: roleNames.filter((role) => roles.includes(role)),
        agents: orAll(wanted.agents),
        workspaces: orAll(wanted.workspaces),
        ...(wanted.worker && { worker: wanted.worker }),
      };
      const problem = workerRightsProblem(rights);
      if (problem !== undefined) throw new Error(problem.message);
      const named = label || rights.roles.join("-");
      const credential = newCredential(token, rights, { label: named, created: Date.now(), expires });
      await table.add(credential);
      return { token, credential };
    },
    async revoke(id: string): Promise<Credential> {
      const revoked = await table.revoke(id, Date.now());
      if (revoked === undefined) throw new Error(`there is no credential "${id}"`);
      return revoked;
    },
  };
}

const orAll = (names: readonly string[]) => (names.length === 0 ? ["*"] : names);
