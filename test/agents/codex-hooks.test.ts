import { connectors } from "./connectors.ts";
import { testHook } from "./hook-rows.ts";

testHook("the hook of Codex", connectors["the hook of Codex"]);
