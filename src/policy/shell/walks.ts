import type { Below } from "./effects.ts";
import type { Option } from "./options.ts";
import type { Walks } from "./programs.ts";

/** Returns what a program reads below the directories it is given; undefined if it does not walk them. */
export function belowDirectories(walks: Walks | undefined, options: readonly Option[]): Below | undefined {
  const used = (names = "") => options.filter(({ name }) => names.split(" ").includes(name));
  if (!walks || (walks.with !== undefined && used(walks.with).length === 0)) return undefined;
  const values = (names = "") => used(names).flatMap(({ value }) => value?.value ?? []);
  const only = used(walks.except).length > 0 ? [] : values(walks.onlyOf);
  return {
    hidden: walks.hiddenWith === undefined || used(walks.hiddenWith).length > 0,
    links: walks.links === true || used(walks.linksWith).length > 0,
    ...(only.length > 0 && { only }),
    except: values(walks.notInto).filter((name) => !/[*?[\\]/.test(name)),
  };
}
