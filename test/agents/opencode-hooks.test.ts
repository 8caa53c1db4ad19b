import { connectors } from "./connectors.ts";
import { testHook } from "./hook-rows.ts";

testHook("the plugin of opencode", connectors["the plugin of opencode"]);
