import { type PermissionDecision, PermissionReason } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Ask, questionPermission } from "../core/ask.ts";
import { type Address, isAmbiguous } from "./address.ts";
import { warningsAbout } from "./display.ts";
import { alwaysAsked, noMatch, type Opinion } from "./opinion.ts";
import { type ConnectorFiles, type GitFiles, gitFile, isGitSettings, protectedFile } from "./protected-files.ts";
import { foldCase } from "./wildcard.ts";

/** Returns the caution that forces an ask although rules or grants allow; undefined if there is none. `at` is the place in the patterns. */
export function caution(
  { permission, patterns, paths, alwaysAsk }: Ask,
  at: number,
  connectorFiles: ConnectorFiles,
  gitFiles?: GitFiles,
): Opinion | undefined {
  if (permission === questionPermission) return alwaysAsked("only a person can answer a question");
  const path = paths?.[at] ?? patterns[at] ?? "";
  const file =
    protectedFile(permission, path) ?? connectorFiles.describe(permission, path) ?? gitFile(permission, path, gitFiles);
  if (file !== undefined) return { ...alwaysAsked(""), reason: `engine: ${path} ${alwaysAskedFor(file)}` };
  const system = systemFile(permission, path);
  if (system !== undefined) return alwaysAsked(`${path} is ${system}`);
  return alwaysAsk === undefined ? undefined : alwaysAsked(`${path} ${alwaysAsk}`);
}

/** Checks if a decision asks because its path holds the settings of a repository, and for no other reason. */
export function asksForGitSettings({ pattern, reason }: Pick<PermissionDecision, "pattern" | "reason">): boolean {
  const what = protectedFile("edit", pattern);
  return isGitSettings(pattern) && what !== undefined && reason.endsWith(`.git/config ${alwaysAskedFor(what)}`);
}

/** Returns the caution about text of which an approver would not see everything. */
export function hiddenText(pattern: string): Opinion | undefined {
  const [warning] = warningsAbout(pattern);
  return warning === undefined ? undefined : alwaysAsked(warning);
}

/** Returns the caution about the port or path of an address that rules allow. */
export function addressCaution(address: Address, namesPort: boolean): Opinion | undefined {
  if (isAmbiguous(address)) return askedFirst("its path has an encoded `..` that only the server would decode");
  if (!namesPort) return askedFirst(`it has port ${address.port}, which the rule does not name`);
  return undefined;
}

/** Describes files of the kernel, which have other effects than plain files when read or written. */
function systemFile(permission: string, path: string): string | undefined {
  const folded = foldCase(path);
  if (/^\/proc\/(\d+|self|thread-self)(\/|$)/.test(folded)) return "the memory and environment of a process";
  if (permission === "external_directory" || folded === "/dev/null") return undefined;
  return /^\/(proc|sys|dev)(\/|$)/.test(folded) ? "an interface of the kernel, not a plain file" : undefined;
}

const alwaysAskedFor = (file: string) => `is ${file}: always asked`;

const askedFirst = (why: string): Opinion => ({ ...noMatch, reason: `${why}: ask`, code: PermissionReason.NOT_NAMED });
