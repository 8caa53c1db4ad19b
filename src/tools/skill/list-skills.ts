import { visible } from "../../core/visible.ts";
import type { Skill } from "../../tool/skills/skills.ts";

/** Maximum length of all descriptions together; skills after that are listed by their names alone. */
const maxListLength = 32_768;

/**
 * Lists skills for the description of the tool. A description is one line that cannot look like another entry. Of a workspace
 * that is not trusted only names are listed: descriptions reach models without being asked for.
 */
export function listSkills(skills: readonly Pick<Skill, "name" | "description" | "distrust">[]): string {
  if (skills.length === 0) return "No skills are available.";
  let length = 0;
  const lines = skills.map(({ name, description, distrust }) => {
    if (distrust !== undefined) return `<skill name="${name}">(${distrust}: loading it asks a person)</skill>`;
    const shown = escapeMarks(visible(description.replaceAll(/\s+/g, " ")));
    length += shown.length;
    return length > maxListLength ? `<skill name="${name}"/>` : `<skill name="${name}">${shown}</skill>`;
  });
  return ["<available_skills>", ...lines, "</available_skills>"].join("\n");
}

/** Escapes the marks of elements, so that a text cannot begin or end one. */
export function escapeMarks(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
