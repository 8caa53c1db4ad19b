import { basename, join } from "node:path";
import { type GitSetting, settingsIn } from "../core/git-settings.ts";
import type { PlacedPush } from "../policy/shell/push.ts";
import { readSmall } from "./bound-files.ts";

/** Bytes of a settings file up to which it is read. */
const maxBytes = 65_536;

/**
 * Describes where pushes go by the settings of their repositories, each as a text; leaves out a push for which other settings may
 * rewrite the address. `files` are the settings that git reads, with those of the user. Addresses are without credentials.
 */
export async function pushTargets(pushes: readonly PlacedPush[], files: readonly string[]): Promise<string[]> {
  const targets = await Promise.all(pushes.map(async (push) => await targetsOf(push, files)));
  return [...new Set(targets.flat())];
}

async function targetsOf({ top, remote: named, refs }: PlacedPush, files: readonly string[]): Promise<string[]> {
  const own = join(top, ".git/config");
  const others = files.filter(
    (file) => file !== own && /^(\.?gitconfig|config|config\.worktree)$/.test(basename(file)),
  );
  const [text, head, ...rest] = await Promise.all(
    [own, join(top, ".git/HEAD"), ...others].map((path) => readSmall(path, maxBytes)),
  );
  if (text === undefined || head === undefined || rest.includes(undefined)) return [];
  const settings = [...settingsIn(text)];
  const beyond = rest.flatMap((other) => [...settingsIn(other ?? "")]);
  if (
    [...settings, ...beyond].some(({ name }) => rewriting.test(name)) ||
    beyond.some(({ name }) => ofRepository.test(name))
  )
    return [];
  const branch = /^ref: refs\/heads\/(.+?)\s*$/.exec(head)?.[1] ?? "";
  const remote = named ?? defaultRemote(settings, branch);
  const [urls, isNamed] = urlsOf(settings, remote);
  const places = urls.map(placeOf);
  if (places.length === 0 || places.includes(undefined)) return [];
  const isPlain = ![...settings, ...beyond].some(
    ({ name, value }) =>
      /^remote\.\*\.(push|mirror)$/.test(name) || (name === "push.default" && !/^(simple|current)$/.test(value)),
  );
  const shown = refs.map((ref) => (ref === "HEAD" || ref === "@" ? branch : ref)).filter((ref) => ref !== "");
  const what = refs.length > 0 ? shown.join(", ") : isPlain && branch !== "" ? `the current branch, ${branch}` : "";
  return places.map((place) =>
    [`${place}${isNamed ? ` (remote ${remote})` : ""}`, ...(what === "" ? [] : [what])].join(", "),
  );
}

/** Settings after which an address may be another one than is written. */
const rewriting = /^(include|includeif|url)\.|^extensions\.worktreeconfig$|^remote\.\*\.(vcs|receivepack)$/;
/** Settings that count only in the repository itself here. */
const ofRepository = /^(remote|branch)\./;

const settingOf = (settings: readonly GitSetting[], name: string, subsection: string) =>
  settings.findLast((one) => one.name === name && one.subsection === subsection)?.value;

/** The remote of a push that names none. */
function defaultRemote(settings: readonly GitSetting[], branch: string): string {
  const named =
    settingOf(settings, "branch.*.pushremote", branch) ??
    settingOf(settings, "remote.pushdefault", "") ??
    settingOf(settings, "branch.*.remote", branch);
  return named ?? "origin";
}

/** The addresses of a remote, which is a name of the settings or itself an address. */
function urlsOf(settings: readonly GitSetting[], remote: string): [urls: string[], isNamed: boolean] {
  const all = (name: string) =>
    settings.filter((one) => one.name === name && one.subsection === remote).map(({ value }) => value);
  const pushed = all("remote.*.pushurl");
  const urls = pushed.length > 0 ? pushed : all("remote.*.url");
  if (urls.length > 0) return [urls, true];
  return [/:/.test(remote) ? [remote] : [], false];
}

/** The host and path of an address, or its directory; undefined where it has another form. */
function placeOf(url: string): string | undefined {
  if (/^(\.{0,2}\/|~)/.test(url)) return url;
  const [, host = "", path = ""] = /^(?:[^@/:\s]+@)?([\w.-]+):(?!\/\/)\/?([^?#\s]+)$/.exec(url) ?? [];
  if (host !== "") return hostAndPath(`ssh://${host}/${path}`);
  return /^(https?|ssh|git|git\+ssh):\/\//.test(url) ? hostAndPath(url) : undefined;
}

function hostAndPath(url: string): string | undefined {
  if (!URL.canParse(url)) return undefined;
  const { host, pathname } = new URL(url);
  return host === "" ? undefined : `${host}${pathname.replace(/\/+$/, "").replace(/\.git$/, "")}`;
}
