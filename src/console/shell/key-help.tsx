import { useEffect, useRef } from "preact/hooks";
import { isTyping } from "./keys.ts";

const keys: readonly [keys: readonly string[], words: string][] = [
  [["j", "k"], "next and previous request"],
  [["/"], "filter the requests"],
  [["o"], "approve once"],
  [["a"], "always: approve and remember"],
  [["e"], "edit the arguments, then approve"],
  [["r"], "reject, with advice for the model"],
  [["Ctrl ↵"], "send the rejection"],
  [["Esc"], "back"],
  [["?"], "this list"],
];

/** The dialog with all keys, which `?` opens. While it is open no key answers a request. */
export function KeyHelp() {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const press = ({ key, ctrlKey, metaKey, altKey, target }: KeyboardEvent) => {
      if (key === "?" && !ctrlKey && !metaKey && !altKey && !isTyping(target)) dialog.current?.showModal();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  return (
    <dialog class="key-help" ref={dialog} aria-labelledby="key-help">
      <h2 id="key-help">Keys</h2>
      <dl>
        {keys.map(([names, words]) => (
          <div key={words}>
            <dt>
              {names.map((name) => (
                <kbd key={name}>{name}</kbd>
              ))}
            </dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button type="submit">Close</button>
      </form>
    </dialog>
  );
}
