import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import iconWaiting from "../icon-waiting.svg";
import { visibleText } from "../parts/visible-text.ts";

/** Shows on the browser's tab how many calls are waiting for an answer. */
export function showWaiting(count: number, page: string): void {
  document.title = `${count > 0 ? `(${count}) ` : ""}${page} · Toolgate`;
  const link = document.querySelector<HTMLLinkElement>("link[rel=icon]");
  if (link === null) return;
  link.dataset.calm ??= link.href;
  link.href = count > 0 ? iconWaiting : link.dataset.calm;
}

/** Shows a notification of a new ask; a click on it opens the ask. */
export function notify({ id, permission, agent, display, patterns }: PermissionRequest, open: () => void): void {
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
