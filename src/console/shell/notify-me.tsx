import { createClient } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { ChannelService } from "../../../gen/opencode/tool/v1/channel_service_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useAttempt } from "./load.ts";
import { type PageProps, ProblemText } from "./page.tsx";
import { pathOf } from "./route.ts";
import "./notify-me.css";

/** States of notifications in this browser, in the order in which a person changes them. */
type Ability = "pushed" | "ready" | "page" | "blocked" | "no channel" | "install" | "no TLS" | "unable" | "unknown";

/** The sheet with which a person lets this device notify them, and the notices of this page while it is open and hidden. */
export function NotifyMe({ connection, feed, route }: PageProps) {
  const ability = useSignal<Ability>("unknown");
  const { failure, attempt } = useAttempt();
  const sheet = useRef<HTMLDialogElement>(null);
  const push = useMemo(() => createPushes(createClient(ChannelService, connection.transport)), [connection]);
  const look = async () => {
    ability.value = await push.ability();
  };
  const change = (work: () => Promise<void>) => attempt(() => work().finally(look));
  useEffect(() => {
    if (isGranted()) void change(push.renew);
    feed.onNew((ask) => {
      if (isGranted() && document.hidden) notify(ask, () => route.go(pathOf("requests", ask.id)));
    });
    const opened = ({ data }: MessageEvent<{ open?: string }>) => {
      const [, id] = /^\/r\/(per_[\w-]+)$/.exec(data?.open ?? "") ?? [];
      if (id !== undefined) route.go(pathOf("requests", id));
    };
    const { serviceWorker } = navigator;
    serviceWorker?.addEventListener("message", opened);
    serviceWorker?.startMessages();
    return () => serviceWorker?.removeEventListener("message", opened);
  }, [feed]);
  const open = () => {
    void attempt(look);
    sheet.current?.showModal();
  };
  return (
    <>
      <button type="button" class="quiet" onClick={open}>
        Notify me
      </button>
      <dialog class="sheet" ref={sheet} aria-labelledby="notify-me">
        <h2 id="notify-me">Notify this device</h2>
        <p role="status">{words[ability.value]}</p>
        <ProblemText text={failure} />
        <form method="dialog">
          {ability.value === "ready" && (
            <button type="button" class="primary" onClick={() => void change(push.subscribe)}>
              Notify me of requests
            </button>
          )}
          {ability.value !== "pushed" && mayAsk() && (
            <button type="button" class="quiet" onClick={() => void change(async () => void (await askBrowser()))}>
              Notify me while this page is open
            </button>
          )}
          {ability.value === "pushed" && (
            <button type="button" class="danger" onClick={() => void change(push.unsubscribe)}>
              Stop on this device
            </button>
          )}
          <button type="submit" class="quiet">
            Close
          </button>
        </form>
      </dialog>
    </>
  );
}

const words: Readonly<Record<Ability, string>> = {
  pushed:
    "On. A request reaches this device within a second, also while this page is closed. A tap opens it; you still decide on the page.",
  ready: "Off. Requests can reach this device while this page is closed. The browser asks you first.",
  page: "This page notifies you while it is open. Pushes are off: the service has no channel for them. `toolgate setup` adds it.",
  blocked:
    "You have blocked notifications of this page. Allow them in the settings that the browser has for this site, then come back.",
  "no channel": "The service sends no pushes yet. The operator adds a channel with `toolgate setup`.",
  install:
    "An iPhone or iPad notifies only for pages on its home screen. Tap Share, then Add to Home Screen, open Toolgate there and come back to this sheet.",
  "no TLS": "This page came without TLS, so the browser does not let it notify. Open it at its https address.",
  unable: "This browser receives no pushes.",
  unknown: "Checking…",
};

const isGranted = () => "Notification" in globalThis && Notification.permission === "granted";
const mayAsk = () => "Notification" in globalThis && Notification.permission === "default";

/** Asks for the permission to notify; returns true if it was given. */
const askBrowser = async () => (await Notification.requestPermission()) === "granted";

/** Safari has no other name for an iPad than that of a Mac. */
const isApplePhone = () =>
  /iPhone|iPad/.test(navigator.userAgent) || (/Mac/.test(navigator.userAgent) && navigator.maxTouchPoints > 1);

/** The pushes of this browser: its subscription at the push service, and the service's record of it. */
function createPushes(channels: ReturnType<typeof createClient<typeof ChannelService>>) {
  const worker = async () => {
    const { serviceWorker } = navigator;
    if ((await serviceWorker.getRegistration()) === undefined) await serviceWorker.register(workerAddress());
    return await serviceWorker.ready;
  };
  const existing = async () => await (await navigator.serviceWorker?.getRegistration())?.pushManager?.getSubscription();
  const pushKey = async () => (await channels.listChannels({})).pushKey;

  async function subscribe(): Promise<void> {
    if (!(await askBrowser())) return;
    const key = await pushKey();
    const { pushManager } = await worker();
    const before = await pushManager.getSubscription();
    const isSame = before !== null && sameBytes(new Uint8Array(before.options.applicationServerKey ?? []), key);
    if (!isSame) await before?.unsubscribe();
    const made = isSame
      ? before
      : await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: new Uint8Array(key) });
    const bytesOf = (name: PushEncryptionKeyName) => new Uint8Array(made.getKey(name) ?? []);
    const keys = { p256dh: bytesOf("p256dh"), auth: bytesOf("auth") };
    await channels.subscribe({ endpoint: made.endpoint, ...keys, pushKey: key });
  }

  return {
    subscribe,
    /** Reports an existing subscription again: the sign-in or the key of the service may be another one now. */
    renew: async () => {
      if (await existing()) await subscribe();
    },
    unsubscribe: async () => {
      const made = await existing();
      if (!made) return;
      await channels.unsubscribe({ endpoint: made.endpoint });
      await made.unsubscribe();
    },
    async ability(): Promise<Ability> {
      if (!isSecureContext) return "no TLS";
      if (!("PushManager" in globalThis) || !("Notification" in globalThis))
        return isApplePhone() ? "install" : "unable";
      if (Notification.permission === "denied") return "blocked";
      if ((await pushKey()).length === 0) return isGranted() ? "page" : "no channel";
      return isGranted() && (await existing()) ? "pushed" : "ready";
    },
  };
}

/** Returns the address of the service worker, the only script address that code may name under the policy of the page. */
function workerAddress(): string {
  const address = "/service-worker.js";
  const { trustedTypes } = globalThis as { trustedTypes?: TrustedTypes };
  return (
    trustedTypes?.createPolicy("service-worker", { createScriptURL: () => address }).createScriptURL("") ?? address
  );
}

/** The part of Trusted Types that names a script; a page may create a policy of one name once. */
interface TrustedTypes {
  createPolicy(name: string, rules: { createScriptURL(): string }): { createScriptURL(given: string): string };
}

const sameBytes = (one: Uint8Array, other: Uint8Array) =>
  one.length === other.length && one.every((byte, index) => byte === other[index]);

/** Shows a notification of a new ask; a click on it opens the ask. */
function notify({ id, permission, agent, display, patterns }: PermissionRequest, open: () => void): void {
  const what = (display[0] ?? patterns[0] ?? "").slice(0, 200);
  let notice: Notification;
  try {
    notice = new Notification(`${visibleText(agent)} asks: ${visibleText(permission)}`, {
      body: visibleText(what),
      tag: id,
    });
  } catch {
    // Browsers of Android have the constructor and refuse it: there only a service worker notifies.
    return;
  }
  notice.onclick = () => {
    focus();
    open();
    notice.close();
  };
}
