import type { Signal } from "@preact/signals";

/** The properties of a field that shows a text and sets it as a person types. */
export const boundTo = (text: Signal<string>) => ({
  value: text,
  onInput({ currentTarget }: { currentTarget: { value: string } }) {
    text.value = currentTarget.value;
  },
});

/** The properties of a box that shows a switch and sets it. */
export const checkedBy = (isOn: Signal<boolean>) => ({
  checked: isOn,
  onChange({ currentTarget }: { currentTarget: { checked: boolean } }) {
    isOn.value = currentTarget.checked;
  },
});
