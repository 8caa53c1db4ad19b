/** Returns true if a key press sends the form that it is in. */
export const isSend = ({ key, ctrlKey, metaKey }: KeyboardEvent) => key === "Enter" && (ctrlKey || metaKey);

/** Returns true if a key press is meant for a field or an open dialog. */
export function isTyping(target: EventTarget | null): boolean {
  if (document.querySelector("dialog:modal") !== null) return true;
  return target instanceof HTMLElement && target.closest("input, textarea, select") !== null;
}
