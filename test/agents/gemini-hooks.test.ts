import { connectors } from "./connectors.ts";
import { testHook } from "./hook-rows.ts";

testHook("the hook of Gemini CLI", connectors["the hook of Gemini CLI"]);
