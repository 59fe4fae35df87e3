// Writes the icons of npm's `@iconify/json` as JSON lines: {"id":"set:name","license":...,"body":...}.
//
//     node icons.mjs PACKAGE_DIRECTORY > icons.jsonl
//
// Icon sets have licences of their own; only sets under the ones named here are taken.
import { readFileSync, readdirSync, writeSync } from "node:fs";
import { join } from "node:path";

const LICENSES = new Set(["MIT", "Apache-2.0", "ISC", "CC0-1.0", "BSD-3-Clause", "Unlicense"]);

const root = process.argv[2];
if (root === undefined) {
  console.error("usage: node icons.mjs PACKAGE_DIRECTORY > icons.jsonl");
  process.exit(2);
}
const collections = JSON.parse(readFileSync(join(root, "collections.json"), "utf8"));
for (const file of readdirSync(join(root, "json")).sort()) {
  const set = JSON.parse(readFileSync(join(root, "json", file), "utf8"));
  const license = collections[set.prefix]?.license?.spdx;
  if (!LICENSES.has(license)) continue;
  let lines = "";
  for (const [name, icon] of Object.entries(set.icons)) {
    lines += JSON.stringify({ id: `${set.prefix}:${name}`, license, ...icon }) + "\n";
  }
  const bytes = Buffer.from(lines);
  for (let at = 0; at < bytes.length; ) at += writeSync(1, bytes, at);
}
