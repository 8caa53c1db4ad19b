import { z } from "zod";
import { roleNames } from "../core/principal.ts";
import type { Credential } from "../people/credential.ts";

const time = z.number().min(0);

/** Schema of one record. */
export const credentialSchema: z.ZodType<Credential> = z.object({
  id: z.string().min(1),
  roles: z.array(z.enum(roleNames)),
  agents: z.array(z.string()),
  workspaces: z.array(z.string()),
  sha256: z.string().regex(/^[0-9a-f]{64}$/),
  label: z.string(),
  created: time,
  expires: time,
  revoked: time,
  personId: z.string().min(1).optional(),
  sid: z.string().min(1).optional(),
  isDeviceFlow: z.boolean().optional(),
  isOfToken: z.boolean().optional(),
  issuer: z.string().min(1).optional(),
  lineage: z.tuple([z.string().min(1)], z.string().min(1)).optional(),
  worker: z
    .object({
      tools: z.array(z.string()),
      permissions: z.array(z.string()),
      calls: z.array(z.string()),
      idempotent: z.boolean(),
      pin: z.array(z.string()),
    })
    .optional(),
  uid: z.number().int().min(0).optional(),
});
